"""Performance fixes for a running, unmodified sglang, with proof that they are correct and on.

Importing this package is cheap: with every patch off, neither wrapt nor sglang nor torch is loaded.
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
__all__ = ["SelectionError", "__version__", "activate", "deactivate", "report", "verdicts"]

# How long to wait for another thread that is at work. While it only judges source, it can't be
# waiting for this thread. Later its install code may wait for a module that this thread imports.
_JUDGING_S, _WAIT_S = 30.0, 1.0


def activate(selection: str | Iterable[str] | None = None, *, strict: bool | None = None) -> Report:
    """Switch patches on in this process, now or as soon as their modules are imported.

    Only the first call decides; later ones return its report, until `deactivate`. If a signal
    handler calls this in the middle of another call, the work is done before that call returns; the
    handler gets the report so far, or None.

    Args:
        selection: a text as in ``SGLANG_PERF_PATCHES``, or names; None reads that variable.
        strict: whether to end the process, with one line and exit code 1, if a patch chosen by name
            can't be applied; None reads ``SGLANG_PERF_PATCHES_STRICT``.

    Raises:
        SelectionError: the selection is malformed or names something unknown.
        RuntimeError: this process was forked while another thread was at the first activation.
    """
    if executor.cut_off and report() is None:
        raise RuntimeError(executor.cut_off)
    text = selection if selection is None or isinstance(selection, str) else ",".join(selection)
    wait_s = _JUDGING_S if report() is None else _WAIT_S
    happened: Any = executor.do(lambda: _activate(text, strict), wait_s=wait_s) or report()
    return happened  # type: ignore[no-any-return]


def deactivate() -> None:
    """Remove every patch from this process and put stock's own objects back.

    A patch stays on while another thread is inside it or while it holds work, and so do the patches
    that depend on it. This call does not wait for that: a warning says what ends it, and the
    process tries again once a second, as does the next call of this function.
    """
    executor.do(lambda: _ask("deactivate_now"), wait_s=_JUDGING_S if report() is None else _WAIT_S)


def report() -> Report | None:
    """The states of the patches in this process; None if nothing was activated.

    It changes nothing and imports nothing.
    """
    happened: Report | None = _ask("report")
    return happened


def verdicts(path: str | Path | None = None) -> list[Verdict]:
    """Judge every patch on a sglang tree, without importing it.

    A patch whose files can't be read or parsed is refused.

    Args:
        path: the package, its parent or a checkout; None for the installed sglang.

    Raises:
        TreeError: there is no sglang tree.
    """
    from . import sets
    from .compat import source, verdict

    tree = source.at(path) if path is not None else source.installed()
    return verdict.judge_each(sets.load(), tree)


def __getattr__(name: str) -> Any:
    if name == "SelectionError":
        from .model.selection import SelectionError

        return SelectionError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _ask(function: str) -> Any:
    """Call a function of the engine, unless that is not imported, or only half."""
    ask = getattr(sys.modules.get(f"{__name__}.live.engine"), function, None)
    return ask() if ask is not None else None


def _activate(text: str | None, strict: bool | None) -> Any:
    """Activate inside a request, imports included, so that a call in between waits for them too."""
    from .live import engine
    from .telemetry import recorder

    happened = engine.activate_now(text, strict=strict, observer=recorder)
    recorder.resume()
    return happened
