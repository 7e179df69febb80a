"""Patches on and off in this process: `activate`, `deactivate`, `report`."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Mapping

from .. import sets
from ..judge import source
from ..judge.verdict import judge_each
from ..model import selection, switch
from ..model.patch import Patch, by_id
from ..model.state import Observer, Report
from .activation import Activation
from .ending import end_process

logger = logging.getLogger("sglang_perf_patches")

# Guards names and states; its holder never imports. It may be taken again by its holder.
_lock = threading.Condition(threading.RLock())
_starting = threading.RLock()  # guards judging, which imports only this project
_ending = threading.RLock()  # held by the thread that ends the process; taken before the others
_current: list[Activation] = []  # at most one; a container, so that nothing rebinds it
_observers: list[Observer] = []


def activate(
    text: str | None = None, *, strict: bool | None = None, tree: source.Tree | None = None
) -> Report:
    """See `sglang_perf_patches.activate`; `tree` is the installed sglang, where it was read."""
    patches = by_id(sets.load())
    with _starting:
        activation = _present()
        if activation is None:
            chosen = selection.parse(switch.from_environment() if text is None else text, patches)
            activation = Activation(
                patches.values(),
                chosen,
                strict=switch.strict_from_environment() if strict is None else strict,
                lock=_lock,
                on_change=_tell_of_change,
                on_end=_tell_of_end,
                on_loss=_end,
            )
            if chosen.chosen:
                read = tree or source.installed()
                activation.take(read, judge_each(sets.load(), read, only=chosen.chosen))
            _current[:] = [activation]
        elif text is not None:
            _compare(text, patches, activation.chosen)
    activation.look_again()
    if activation.chosen.chosen and not activation.is_observed:
        activation.is_observed = True
        for observer in _observers:
            observer.keep(report, look_again)
    return activation.report()


def deactivate() -> None:
    """See `sglang_perf_patches.deactivate`."""
    activation = _present()
    if activation is not None:
        activation.stop()


def report() -> Report | None:
    """What happened in this process; None if nothing has been activated."""
    activation = _present()
    return activation.report() if activation else None


def look_again() -> None:
    """Verify what is live, and switch on what is ready by now. Called by a regular tick."""
    activation = _present()
    if activation is not None:
        activation.look_again()
        with contextlib.suppress(Exception):  # it only saves a later process some time
            activation.save()


def observe(observer: Observer) -> None:
    """Tell `observer` from now on what happens in this process."""
    if observer not in _observers:
        _observers.append(observer)


def _present() -> Activation | None:
    with _lock:
        return next((activation for activation in _current if not activation.ended), None)


def _compare(text: str, patches: Mapping[str, Patch], decided: selection.Selection) -> None:
    """Say so if a later call wants something other than the first one, which decided."""
    try:
        asked = selection.parse(text, patches)
    except selection.SelectionError as error:
        first = f"and the first call has decided already, for {decided.text!r}"
        raise selection.SelectionError(f"{error} ({first})") from None
    if asked.chosen != decided.chosen:
        line = "sglang-perf-patches: %r changes nothing: the first call decided, for %r"
        logger.warning(line, text, decided.text)


def _tell_of_change() -> None:
    for observer in _observers:
        observer.changed()


def _tell_of_end() -> None:
    for observer in _observers:
        observer.drop()


def _end(line: str) -> None:
    # Two threads may see the same loss. The second one must not end the process while the first
    # one is removing what is live and the record of this process.
    with _ending:
        with contextlib.suppress(Exception):
            deactivate()
        end_process(line)


def _before_fork() -> None:
    _ending.acquire()
    _starting.acquire()
    _lock.acquire()


def _after_fork() -> None:
    _lock.release()
    _starting.release()
    _ending.release()


def _after_fork_in_child() -> None:
    for activation in _current:
        activation.forget_threads()
    _after_fork()


# A child must not inherit a lock from a thread that it does not have.
os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)
