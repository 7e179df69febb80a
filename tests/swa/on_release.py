"""Run checks on one release: ``python on_release.py``, the release on PYTHONPATH.

Jobs come as JSON on stdin, each ``[name, {arguments}]``. A job is a function of `checks`, or
``play`` with so many ``episodes``, or ``select`` with the ``text`` of a selection to activate from
here on. It may also be ``states`` of the patches, ``prove`` for the cases of ``verify``, or
``broken`` for another job while functions of the patches are disabled. Prints one JSON line a job:
its ``value``, or ``error``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from sglang_perf_patches.proof import lent

lent.lend()

import sglang_perf_patches  # noqa: E402
from sglang_perf_patches import proof  # noqa: E402
from sglang_perf_patches.live import engine as activation  # noqa: E402
from sglang_perf_patches.proof import worker  # noqa: E402
from sglang_perf_patches.proof.swa.pools import publish  # noqa: E402


def main() -> int:
    """Do the jobs; print one line for the result of each."""
    warnings.filterwarnings("ignore")
    for name in ("sglang", "sglang_perf_patches"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    import sglang.srt.disaggregation.decode  # noqa: F401 - the patches go live on what is there

    functions = _functions()
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


def _functions() -> dict[str, Callable[..., Any]]:
    import heap_checks
    import leaving_checks
    import pool_checks
    from checks import CHECKS
    from machine import play

    own = {"select": select, "states": states, "prove": prove, "broken": broken}
    others = (leaving_checks, pool_checks, heap_checks)
    found = {name: check for module in others for name, check in module.CHECKS.items()}
    return {**CHECKS, **found, "play": play, **own}


def select(text: str) -> None:
    """Take off what is on, and put a selection on, in a plain server."""
    _have_stock()
    publish()
    sglang_perf_patches.activate(text)


def _have_stock() -> None:
    """Take off what is on; the requests of earlier jobs are waited for, and gone."""
    gc.collect()
    sglang_perf_patches.deactivate()
    assert activation.report() is None, activation.report()


def states() -> dict[str, list[Any]]:
    """Each patch's state, and whether its code has run."""
    activation.look_again()
    report = activation.report()
    return (
        {p.id: [p.state, p.ran] for p in report.patches if p.id.startswith("swa.")}
        if report
        else {}
    )


def prove(patches: list[str]) -> list[dict[str, Any]]:
    """The lines of these patches' cases, with inputs from hypothesis."""
    from prove import drawn

    _have_stock()
    chosen = [case for case in proof.all_cases() if case.patch in patches]
    return list(worker.run(chosen, drawn))


def broken(names: list[str], selection: str, job: str, arguments: dict[str, Any]) -> str | None:
    """What a job says while these functions of the patches do nothing; None if it passes.

    Args:
        names: functions of the set's modules.
        selection: what is live meanwhile.
        job: which job.
        arguments: its arguments.

    Raises:
        Exception: the job failed in another way than by a check.
    """
    try:
        with _out_of_work(names):
            select(selection)
            _functions()[job](**arguments)
    except AssertionError as error:
        return str(error) or "an assertion"
    finally:
        select("none")
    return None


@contextlib.contextmanager
def _out_of_work(names: list[str]) -> Iterator[None]:
    from sglang_perf_patches.sets.swa import growth, leaving, tail_allocation
    from sglang_perf_patches.sets.swa.page_size_1 import body as page_size_1
    from sglang_perf_patches.sets.swa.page_size_1 import host_copies
    from sglang_perf_patches.sets.swa.tail_prealloc import body as tail_prealloc
    from sglang_perf_patches.sets.swa.tail_prealloc import cpu_copy

    modules = (
        *(cpu_copy, growth, host_copies, leaving),
        *(page_size_1, tail_allocation, tail_prealloc),
    )
    kept = []
    for name in names:
        holders = [module for module in modules if hasattr(module, name)]
        if not holders:
            raise ValueError(f"there is no {name} to break")
        kept += [(module, name, getattr(module, name)) for module in holders]
    try:
        for module, name, _ in kept:
            setattr(module, name, lambda *_, **__: None)
        yield
    finally:
        for module, name, function in kept:
            setattr(module, name, function)


if __name__ == "__main__":
    sys.exit(main())
