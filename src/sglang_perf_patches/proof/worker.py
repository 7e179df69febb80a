"""Run cases in this process: ``python -m sglang_perf_patches.proof.worker DEVICE PATCH …``.

Prints one JSON line a case: ``patch``, ``device``, ``seconds`` and one of ``compared`` (how many
comparisons were equal), ``different``, ``missing`` (what this machine lacks) or ``failed`` (the
tracebacks of anything else). Beside ``missing``, ``others`` is how many comparisons of the case's
other checks were equal. Every check of a case is played, whatever becomes of the others, and each
that differs or fails is told by its name; so is one that misses something where others don't.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

from .. import worker
from . import Case, Different, Inputs, Missing, all_cases

T = TypeVar("T")

COUNT = 8
"""Inputs that a case draws, unless it sets a number itself."""


def main(words: Sequence[str]) -> int:
    """Run the cases of these patches, all of one set, on one device; 0 whatever they find."""
    device, *patches = words
    cases = [case for case in all_cases() if case.device == device and case.patch in patches]
    for line in run(cases, seeded):
        worker.emit(line)
    return 0


def run(cases: Sequence[Case], inputs: Inputs) -> Iterator[dict[str, Any]]:
    """Run cases of one set one after the other; the line of each as it ends."""
    os.environ["SGLANG_PERF_PATCHES"] = "none"  # only the checks make patches live
    logging.getLogger("sglang_perf_patches").setLevel(logging.CRITICAL)
    for name in dict.fromkeys(case.patch.partition(".")[0] for case in cases):
        importlib.import_module(f"{__package__}.{name}").prepare()
    for case in cases:
        began = time.monotonic()
        line = {"patch": case.patch, "device": case.device, **_play(case, inputs)}
        yield {**line, "seconds": round(time.monotonic() - began, 1)}


def _play(case: Case, inputs: Inputs) -> dict[str, Any]:
    """Play all checks of a case: the worst that became of any, and of which."""
    compared = 0
    reasons_by_word: dict[str, list[str]] = {"failed": [], "different": []}
    missing: dict[str, str] = {}
    try:
        checks = case.checks()
    except Exception:
        return {"failed": traceback.format_exc()}
    for name, check in checks.items():
        try:
            compared += check(inputs)
        except Different as error:
            reasons_by_word["different"].append(f"{name}: {error}")
        except Missing as error:
            missing[name] = str(error)
        except Exception:
            reasons_by_word["failed"].append(f"{name}:\n{traceback.format_exc()}")
    for word, reasons in reasons_by_word.items():
        if reasons:
            return {word: ("\n" if word == "failed" else "; ").join(dict.fromkeys(reasons))}
    if missing and compared:
        named = (f"{name}: {reason}" for name, reason in missing.items())
        return {"missing": "; ".join(named), "others": compared}
    if missing:
        return {"missing": "; ".join(dict.fromkeys(missing.values()))}
    return {"compared": compared}


def seeded(draw: Callable[[Random], T], count: int | None = None) -> list[T]:
    """The same inputs on every machine."""
    return [draw(Random(seed)) for seed in range(COUNT if count is None else count)]  # noqa: S311


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
