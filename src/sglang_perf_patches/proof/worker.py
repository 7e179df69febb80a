"""Run cases in this process: ``python -m sglang_perf_patches.proof.worker DEVICE PATCH …``.

Prints one JSON line a case: ``patch``, ``device``, ``seconds`` and one of ``compared`` (how many
comparisons were equal), ``different`` (the first difference), ``missing`` (what this machine
lacks) or ``failed`` (the traceback of anything else).
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
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
    chosen = [case for case in all_cases() if case.device == device and case.patch in patches]
    for line in run(chosen, seeded):
        worker.emit(line)
    return 0


def run(chosen: Sequence[Case], inputs: Inputs) -> Iterable[dict[str, Any]]:
    """Run cases of one set one after the other; the line of each as it ends."""
    os.environ["SGLANG_PERF_PATCHES"] = "none"  # only the cases make patches live
    logging.getLogger("sglang_perf_patches").setLevel(logging.CRITICAL)
    for name in dict.fromkeys(case.patch.partition(".")[0] for case in chosen):
        importlib.import_module(f"{__package__}.{name}").prepare()
    for case in chosen:
        began = time.monotonic()
        line: dict[str, Any] = {"patch": case.patch, "device": case.device}
        try:
            line["compared"] = case.load()(inputs)
        except Different as error:
            line["different"] = str(error)
        except Missing as error:
            line["missing"] = str(error)
        except Exception:
            line["failed"] = traceback.format_exc()
        line["seconds"] = round(time.monotonic() - began, 1)
        yield line


def seeded(draw: Callable[[Random], T], count: int | None = None) -> list[T]:
    """The same inputs on every machine."""
    return [draw(Random(seed)) for seed in range(COUNT if count is None else count)]  # noqa: S311


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
