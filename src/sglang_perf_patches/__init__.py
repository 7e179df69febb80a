"""Performance fixes for a running, unmodified sglang, with proof that they are correct and on.

Importing this package imports only what calls wait in: with every patch off, neither wrapt nor
sglang nor torch is loaded.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .live.executor import executor

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .compat.verdict import Verdict
    from .model.selection import SelectionError
    from .model.state import Report

__version__ = "0.1.0"
__all__ = [
    "SelectionError",
    "__version__",
    "activate",
    "deactivate",
    "report",
    "verdicts",
]

# How long to wait for another thread that is at work. While it judges, it waits for no import of
# this thread's; later its install code may.
_JUDGING_S = 30.0
_WAIT_S = 1.0


def activate(selection: str | Iterable[str] | None = None, *, strict: bool | None = None) -> Report:
    """Switch patches on in this process, now or as soon as their modules have been imported.

    Only the first call of a process decides; later ones report what it did, until `deactivate`. A
    call that a signal handler makes in the middle of another one is done before that one returns;
    it returns what was known so far, None if that is nothing.

    Args:
        selection: as in ``SGLANG_PERF_PATCHES``, which is read where this is None; or its names.
        strict: end the process, with one line and exit code 1, where something chosen by name
            can't be had; where this is None, ``SGLANG_PERF_PATCHES_STRICT`` tells.

    Raises:
        SelectionError: the selection is malformed or names something unknown, also where the first
            call has decided already.
    """
    text = selection if selection is None or isinstance(selection, str) else ",".join(selection)
    wait_s = _JUDGING_S if report() is None else _WAIT_S
    happened: Any = executor.do(lambda: _activate(text, strict), wait_s=wait_s).result() or report()
    return happened  # type: ignore[no-any-return]


def deactivate() -> None:
    """Take every patch of this process off again: stock's own objects are back in their places.

    A patch that holds work, or that another thread is in a call of, stays on until that is over,
    and so does what depends on it. No call waits for it, nor does this one. A warning says what it
    waits for; the process tries again once a second, and so does the next call of this function.
    """
    loaded = executor.do(_import, wait_s=_JUDGING_S).result()
    if loaded is None:  # in the middle of another call, which does it before it returns
        executor.do(lambda: _import()[0].take_off())
    else:
        loaded[0].deactivate()


def report() -> Report | None:
    """What happened to the patches of this process so far; None if nothing was activated.

    It changes nothing and imports nothing.
    """
    engine = sys.modules.get(f"{__name__}.live.engine")
    ask = getattr(engine, "report", None)  # not there while the engine is being imported
    happened: Report | None = ask() if ask is not None else None
    return happened


def verdicts(path: str | Path | None = None) -> list[Verdict]:
    """Say what every patch would do to a sglang tree, without importing it.

    Args:
        path: the package, its parent or a checkout; None for the installed one.

    A file that can't be read or parsed refuses the patches that need it.

    Raises:
        TreeError: there is no sglang tree.
    """
    from . import sets
    from .compat import source, verdict

    tree = source.at(path) if path is not None else source.installed()
    return verdict.judge_each(sets.load(), tree)


def __getattr__(name: str) -> Any:
    """`SelectionError` is imported only where it is asked for."""
    if name == "SelectionError":
        from .model.selection import SelectionError

        return SelectionError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _import() -> tuple[Any, Any]:
    """The engine and the recorder."""
    from .live import engine
    from .telemetry import recorder

    return engine, recorder


def _activate(text: str | None, strict: bool | None) -> Any:
    """Activate, inside of a request, so that what comes in between waits for the imports too."""
    engine, recorder = _import()
    engine.observe(recorder)
    happened = engine.activate_now(text, strict=strict)
    recorder.resume()
    return happened
