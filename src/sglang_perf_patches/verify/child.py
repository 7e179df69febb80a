"""Run checks on this machine's device: ``python -m sglang_perf_patches.verify.child CASE …``.

Prints one JSON line a case: ``case``, ``seconds`` of its checks, ``gpu`` (the name and the
capability of the one that kernels ran on) and one of ``compared`` (how many comparisons were
equal), ``different``, ``missing`` (what this machine lacks; with ``needless`` if no server here
runs that) or ``failed`` (the tracebacks of anything else). Every check of a case runs, whatever
becomes of the others. Reasons begin with the name of a check; if no check was equal, those of
``missing`` don't. If one was, ``compared`` has a line of its own before ``missing``.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from .. import verified, worker
from . import Check, Different, Inputs, Missing, Needless, checks

T = TypeVar("T")

COUNT = 8
"""Inputs that a check draws, unless it sets a number itself."""


def main(cases: Sequence[str]) -> int:
    """Run the checks of these cases, all of one set; 0 whatever they find."""
    if not cases[0].startswith("mlx."):
        _one_configuration()
    verified.is_proving = True  # or a GPU that needs a record would never get one
    for line in run(cases, checks, seeded):
        worker.emit({**line, "gpu": _gpu()})
    return 0


def _gpu() -> tuple[str, str] | None:
    """The GPU that this process has used; None if it has used none, or Triton interpreted."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    is_interpreted = os.environ.get("TRITON_INTERPRET", "0") not in {"", "0"}
    if cuda is None or is_interpreted or not cuda.is_initialized():
        return None
    major, minor = cuda.get_device_capability()
    return cuda.get_device_name(), f"{major}.{minor}"


def _one_configuration() -> None:
    """Make Triton take one configuration of those it would tune a kernel over.

    Both sides run the same kernels, so which one makes no difference; to try all takes minutes.
    """
    try:
        import triton
    except ImportError:  # each check says what it lacks
        return
    tune = triton.autotune
    triton.autotune = lambda configs, *args, **kwargs: tune(configs[-1:], *args, **kwargs)


def run(
    cases: Sequence[str], checks: Callable[[str], Mapping[str, Check]], inputs: Inputs
) -> Iterator[dict[str, Any]]:
    """Run the checks of cases one after the other; the line of each as it ends."""
    os.environ["SGLANG_PERF_PATCHES"] = "none"  # only the checks make patches live
    for name in ("sglang", "sglang_perf_patches"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # about intended refusals
    for case in cases:
        try:
            by_name = checks(case)
        except Exception:
            yield {"case": case, "failed": traceback.format_exc(), "seconds": 0.0}
            continue
        began = time.monotonic()  # the first case's import of sglang may take 30 s
        found = _compared(by_name, inputs)
        seconds = round(time.monotonic() - began, 1)
        yield from ({"case": case, **line, "seconds": seconds} for line in found)


def _compared(by_name: Mapping[str, Check], inputs: Inputs) -> list[dict[str, Any]]:
    """Run all checks of a case: the worst that became of any, and of which."""
    compared = 0
    failed: list[str] = []
    different: list[str] = []
    missing: dict[str, Missing] = {}
    for name, check in by_name.items():
        try:
            compared += check(inputs)
        except Different as error:
            different.append(f"{name}: {error}")
        except Missing as error:
            missing[name] = error
        except Exception:
            failed.append(f"{name}:\n{traceback.format_exc()}")
    if failed:
        return [{"failed": "\n".join(failed)}]
    if different:
        return [{"different": "; ".join(different)}]
    needless = all(isinstance(each, Needless) for each in missing.values())
    if missing and compared:
        named = (f"{name}: {reason}" for name, reason in missing.items())
        return [{"compared": compared}, {"missing": "; ".join(named), "needless": needless}]
    if missing:
        said = "; ".join(dict.fromkeys(map(str, missing.values())))
        return [{"missing": said, "needless": needless}]
    return [{"compared": compared}]


def seeded(draw: Callable[[Random], T], count: int | None = None) -> list[T]:
    """The same inputs on every machine."""
    return [draw(Random(seed)) for seed in range(COUNT if count is None else count)]  # noqa: S311


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
