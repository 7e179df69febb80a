"""Patches on and off in this process: `activate_now`, `deactivate`, `report`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from .. import sets
from ..compat import source
from ..compat.verdict import judge_each
from ..model import selection, switch
from ..model.patch import Patch, by_id
from ..model.state import Observer, Report
from . import forks  # noqa: F401
from .activation import Activation
from .ending import end_process
from .executor import executor

logger = logging.getLogger("sglang_perf_patches")

_current: list[Activation] = []  # at most one; a container, so that nothing rebinds it
_observers: list[Observer] = []

# Bounded, because install code may import a module that the waiting thread is importing.
_WAIT_S = 1.0


def activate_now(
    text: str | None, *, strict: bool | None = None, tree: source.Tree | None = None
) -> Report:
    """See `sglang_perf_patches.activate`; to be called inside a request of the executor.

    `tree` is the installed sglang, if it was read before.
    """
    activation = _started(text, strict=strict, tree=tree)
    activation.look_now()
    if activation.selection.ids and not activation.is_observed and not activation.registry.over:
        activation.is_observed = True
        for observer in _observers:
            try:
                observer.keep(report, look_again, activation)
            except Exception:
                logger.warning(
                    "sglang-perf-patches: `status` will not show this process",
                    exc_info=True,
                )
    return activation.report()


def deactivate(*, is_told: bool = True) -> None:
    """See `sglang_perf_patches.deactivate`; `is_told`: whether a warning says what it waits for."""
    for activation in list(_current):
        activation.stop()  # outside of the executor, so that a thread at work there sees it at once
    waits_for = executor.do(take_off, wait_s=_WAIT_S).result()
    if waits_for and is_told:
        logger.warning("sglang-perf-patches: deactivate() waits: %s", waits_for)


def take_off() -> str:
    """Remove every patch, inside a request.

    Returns:
        what it waits for; "" if all are off.
    """
    activation = _present()
    if activation is None:
        return ""
    activation.stop()
    activation.look_now()
    return "" if activation.ended else activation.registry.waits_for()


def _present() -> Activation | None:
    return next((activation for activation in list(_current) if not activation.ended), None)


def report() -> Report | None:
    """See `sglang_perf_patches.report`."""
    activation = _present()
    return activation.report() if activation else None


def look_again() -> None:
    """Check every patch of this process; the recorder calls this once a second."""
    activation = _present()
    if activation is not None:
        activation.look_again()


def observe(observer: Observer) -> None:
    """Notify `observer` from now on. Idempotent."""
    if observer not in _observers:
        _observers.append(observer)


def _started(text: str | None, *, strict: bool | None, tree: source.Tree | None) -> Activation:
    """The present activation, else a new one with its verdicts."""
    patches = by_id(sets.load())
    activation = _present()
    if activation is not None and activation.is_stopping:
        activation.look_now()  # it was stopped, but something kept a patch on: try again
        activation = _present()
    if activation is not None:
        if text is not None:
            _compare(text, patches, activation.selection)
        return activation
    chosen = selection.parse(switch.from_environment() if text is None else text, patches)
    activation = Activation(
        patches.values(),
        chosen,
        strict=switch.strict_from_environment() if strict is None else strict,
        observers=_observers,
    )
    if chosen.ids:
        read = tree or source.installed()
        activation.take(read, judge_each(sets.load(), read, only=chosen.ids))
    _current[:] = [activation]
    return activation


def _compare(text: str, patches: Mapping[str, Patch], decided: selection.Selection) -> None:
    """Warn if a later call selects other patches than the first one, which decided.

    Raises:
        SelectionError: the later selection is malformed.
    """
    try:
        selected = selection.parse(text, patches)
    except selection.SelectionError as error:
        first = f"and the first call has decided already, for {decided.text!r}"
        raise selection.SelectionError(f"{error} ({first})") from None
    if selected.ids != decided.ids:
        line = "sglang-perf-patches: %r changes nothing: the first call decided, for %r"
        logger.warning(line, text, decided.text)


def _end(line: str) -> None:
    # Two threads may see the same loss. The second one must not end the process while the first
    # one is removing what is live and the record of this process.
    with executor.ending:
        with contextlib.suppress(Exception):
            deactivate(is_told=False)
            for observer in _observers:
                observer.drop()  # even if a busy patch can't be removed
        end_process(line)


def _speak() -> None:
    for activation in list(_current):
        loss = activation.notices.speak()
        if loss:
            _end(loss)


def _interrupted() -> None:
    """Remove every patch after an interruption (such as Ctrl-C), which then goes to the caller."""
    for activation in list(_current):
        activation.stop()
        executor.do(activation.look_now)


executor.afterwards = _speak
executor.interrupted = _interrupted


def _leave(reason: str) -> None:
    for activation in _current:
        activation.leave(reason)


executor.leave = _leave
