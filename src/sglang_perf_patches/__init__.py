"""Performance fixes for a running, unmodified sglang, with proof that they are correct and on.

Importing this package imports nothing else of it: with every patch off, neither wrapt nor sglang
nor torch is loaded.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .judge.verdict import Verdict
    from .model.state import Report

__version__ = "0.1.0"
__all__ = ["__version__", "activate", "deactivate", "verdicts"]

_asked: list[Callable[[], object]] = []  # for what came while this thread imported the engine


def activate(selection: str | None = None, *, strict: bool | None = None) -> Report:
    """Switch patches on in this process, now or as soon as their modules have been imported.

    Only the first call of a process decides; later ones report what it did, until `deactivate`. A
    call that a signal handler makes in the middle of another one is done before that one returns.

    Args:
        selection: as in ``SGLANG_PERF_PATCHES``, which is read where this is None.
        strict: end the process, with one line and exit code 1, where something chosen by name
            can't be had; where this is None, ``SGLANG_PERF_PATCHES_STRICT`` tells.

    Raises:
        SelectionError: the selection is malformed or names something unknown, also where the first
            call has decided already.
    """
    if _interrupts_import():
        _asked.append(lambda: activate(selection, strict=strict))
        return _nothing_yet(selection)
    try:
        engine, keeper = _import()
        engine.observe(keeper)
        report: Report = engine.activate(selection, strict=strict)
        keeper.resume()
    finally:
        _do_asked()
    return report


def deactivate() -> None:
    """Take every patch of this process off again: stock's own objects are back in their places.

    A patch that holds work, or that another thread is in a call of, stays on until that is over. A
    warning says what it waits for; the process goes on with it once a second, and so does the next
    call of this function.
    """
    if _interrupts_import():
        _asked.append(deactivate)
        return
    try:
        engine, _ = _import()
        engine.deactivate()
    finally:
        _do_asked()


def verdicts(path: str | Path | None = None) -> list[Verdict]:
    """Say what every patch would do to a sglang tree, without importing it.

    Args:
        path: the package, its parent or a checkout; None for the installed one.

    A file that can't be read or parsed refuses the patches that need it.

    Raises:
        TreeError: there is no sglang tree.
    """
    from . import sets
    from .judge import source, verdict

    tree = source.at(path) if path is not None else source.installed()
    return verdict.judge_each(sets.load(), tree)


def _import() -> tuple[Any, Any]:
    """The engine and the keeper."""
    from .live import engine
    from .seen import keeper

    return engine, keeper


def _interrupts_import() -> bool:
    """Whether a signal handler or a finaliser calls in the middle of `_import`, on this thread.

    Then modules of this package are there but not whole.
    """
    frame = sys._getframe()
    while frame is not None and frame.f_code is not _import.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def _nothing_yet(selection: str | None) -> Report:
    name = f"{__name__}.model.state"
    if not hasattr(sys.modules.get(name), "Report"):
        sys.modules.pop(name, None)  # it is not whole: the import that goes on takes the new one
    from .model.state import Report

    return Report(selection or "", "unknown", ())


def _do_asked() -> None:
    while _asked:
        _asked.pop(0)()
