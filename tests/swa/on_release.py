"""Run checks on one release: ``python on_release.py [BROKEN]``, the release on PYTHONPATH.

Jobs come as JSON on stdin, each ``[name, {arguments}]``: a function of `checks`, ``play`` with so
many ``episodes``, ``select`` with the ``text`` of a selection to activate from here on, or
``states`` of the patches. BROKEN names, with commas between, functions of the patches to put out
of work first, to see that a check notices. Prints one JSON line a job: its ``value``, or ``error``.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
import warnings
from typing import Any

from sglang_perf_patches.proof import lent

lent.lend()

import sglang_perf_patches  # noqa: E402
from sglang_perf_patches import activation  # noqa: E402


def main(broken: str = "") -> int:
    """Do the jobs; the result of each is its line."""
    warnings.filterwarnings("ignore")
    for name in ("sglang", "sglang_perf_patches"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    import sglang.srt.disaggregation.decode  # noqa: F401 - the patches go live on what is there
    from checks import CHECKS
    from machine import play

    _break([name for name in broken.split(",") if name])
    functions = {**CHECKS, "play": play, "select": select, "states": states}
    for name, arguments in json.load(sys.stdin):
        began = time.monotonic()
        line: dict[str, Any] = {"job": name}
        try:
            line["value"] = functions[name](**arguments)
        except Exception:
            line["error"] = traceback.format_exc(limit=-4)
        line["seconds"] = round(time.monotonic() - began, 1)
        print(json.dumps(line), flush=True)
    return 0


def select(text: str) -> None:
    """Take off what is on, and put a selection on."""
    sglang_perf_patches.deactivate()
    sglang_perf_patches.activate(text)


def states() -> dict[str, list[Any]]:
    """Each patch's state, and whether its code has run."""
    report = activation.report()
    return (
        {p.id: [p.state, p.ran] for p in report.patches if p.id.startswith("swa.")}
        if report
        else {}
    )


def _break(names: list[str]) -> None:
    from sglang_perf_patches.sets.swa import cpu_copy, tail_allocation, tail_prealloc

    for name in names:
        for module in (tail_allocation, tail_prealloc, cpu_copy):
            if hasattr(module, name):
                setattr(module, name, lambda *_, **__: None)
                break
        else:
            raise ValueError(f"there is no {name} to break")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
