"""The patches of a process, from their selection until all are off again.

A selected patch with the verdict ``applies`` goes live, completely and only on known code:

1. wait until the last of its modules is imported;
2. verify in memory every definition that it changes or relies on;
3. run its install function, which declares the changes, and make the new functions;
4. exchange all its places at once (`switch`).

Its definitions are checked again after each awaited import, after sglang's
``HookRegistry.apply_hooks`` (which runs after every plugin), after each publication of the server's
arguments, and once a second. If a definition was replaced, or if the server uses a feature that the
patch was not proven with (see `model.setups`), the whole patch is removed, as soon as no thread is
inside it and it holds no work.

The executor runs these steps one at a time. Each is idempotent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from .. import verified
from ..compat.verdict import Verdict
from ..model.feature import Setup
from ..model.patch import Patch, module_of
from ..model.patching import Gated, Make
from ..model.selection import Selection
from ..model.setups import FEATURES, Ruling, ruling
from ..model.state import Observer, PatchState, Report, State
from . import memory, published, threads
from .executor import end_process, executor
from .memory import Member, forget_results, with_dependents
from .published import Watched, is_ready
from .switch import board, exchange
from .wrappers import Conflict

logger = logging.getLogger("sglang_perf_patches")

# Bounded, because install code may import a module that the waiting thread is importing.
_OTHER_THREAD_S = 1.0
_HOOKS = "sglang.srt.plugins.hook_registry"
_WORKING = frozenset({"live", "pending", "gated", "not needed"})
_RULED = frozenset({"gated", "not needed"})  # by `model.setups`: no fault, so nothing is logged
_FAULTS = frozenset({"conflict", "failed"})
_OFF: tuple[State, str] = ("off", "")


class Registry:
    """The patches of this process; at most one registry at a time has not ended.

    Creating one changes nothing in stock. The declared order of the patches is also the order of
    layers in a place. If it is strict, losing a patch that was chosen by name ends the process.
    """

    def __init__(self, patches: Iterable[Patch], selection: Selection, *, strict: bool) -> None:
        self.selection = selection
        self.end: tuple[State, str] | None = None  # of every patch, if no further one goes live
        self.is_ended = False  # after `stop` all is off; never after a fault, which `report` shows
        self.observer: Observer | None = None  # is told of each change, and when all is off again
        self.loss = ""  # the line about the first demanded patch that was lost: ends the process
        self._demanded = selection.by_name if strict else frozenset()
        self._lines: deque[tuple[int, str]] = deque()
        self._version = "unknown"
        self._members = {each.id: Member(each, partial(self._close, each.id)) for each in patches}
        self._hooks, self._publishing = Watched(self.look_again), Watched(self.look_again)
        self._had: frozenset[str] = frozenset()  # every use that the server was known to have

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __getitem__(self, patch: str) -> Member:
        return self._members[patch]

    def accept(self, version: str, verdicts: Iterable[Verdict]) -> None:
        """Take the verdicts on the installed sglang for the selected patches."""
        self._version = version
        for verdict in verdicts:
            member = self[verdict.patch.id]
            member.verdict = verdict
            if verdict.word == "applies":
                member.status = ("pending", "")
                continue
            member.status = (verdict.word, verdict.reason)
            is_named_in_full = member.patch.id in self.selection.in_full
            if verdict.word == "refused" or (verdict.word == "absent" and is_named_in_full):
                self._warn(member, *member.status)

    def look_again(self) -> None:
        """Check live patches, remove marked ones, and put live those that are ready.

        After a loss that ends the process, no thread returns from here.
        """
        while True:
            try:
                executor.do(self.look, wait_s=_OTHER_THREAD_S)
            except Exception:  # sglang's own code is calling; the next check tries again
                logger.debug("unexpected", exc_info=True)
            if not self.loss or executor.is_at_work_here():
                return

    def look(self) -> None:
        """`look_again` inside a request of the executor; after a fault, remove every patch."""
        try:
            if executor.cut_off:
                self._abandon(executor.cut_off)
            if self.end is None:
                self._check()
            self._settle()
        except Exception as error:
            logger.debug("unexpected", exc_info=True)
            self._abandon(f"{type(error).__name__}: {error}")
            with contextlib.suppress(Exception):  # the next check tries again
                self._settle()
        except BaseException:  # an interruption, such as Ctrl-C, which then goes to the caller
            self.stop()
            with contextlib.suppress(Exception):
                self._settle()
            raise
        self._tell()

    def report(self) -> Report:
        """The state of each patch."""
        states = []
        for each in self:
            state, reason = each.status
            note = each.ran.note if state == "live" else ""
            states.append(PatchState(each.patch.id, state, reason or note, each.ran.seen))
        return Report(self.selection.text, self._version, tuple(states))

    def stop(self) -> None:
        """Make the next check remove every patch."""
        self.end = _OFF

    def _abandon(self, reason: str) -> None:
        """Remove every patch after an unexpected fault, and log the reason once."""
        if self.end is None:
            line = f"sglang-perf-patches: every patch is removed: {reason}"
            self._lines.append((logging.ERROR, line))
        if self.end is not _OFF:
            self.end = ("failed", reason)
        self._remove_all("failed", reason)

    def waits_for(self) -> str:
        """``ID until REASON`` for each patch that is to be removed; "" if there is none."""
        leaving = [member for member in self if member.end is not None]
        return "; ".join(f"{each.patch.id} until {self._why_on(each)}" for each in leaving)

    # -- steps -----------------------------------------------------------------------------------

    def _check(self) -> None:
        """Mark for removal what was replaced, or what this server does not need or support."""
        for member in self:
            if member.word == "live" and member.end is None:
                try:
                    memory.verify_if_changed(member)
                    self._set(member, "live", member.wrapped)
                except Conflict as conflict:
                    self._remove(member, "conflict", str(conflict))
        staying = [each for each in self._working() if each.end is None]
        members = [each for each in staying if each.word != "gated" or self.is_on(each)]
        for member, ruled in self._rule(members):
            if member.word == "not needed":  # it waits again if the server turns out to need it
                if ruled is None or ruled[0] != "not needed":
                    self._set(member, "pending", "")
            elif ruled is not None:
                self._remove(member, *ruled)

    def _settle(self) -> None:
        """Remove marked patches, put live those that are ready, and end if all are off."""
        if self.end is not None:
            self._remove_all(*self.end)
        self._remove_marked()
        self._advance()
        self._remove_marked()  # one that failed to go live removes those that need it
        if self.end is None or self.is_ended or self.on():
            return
        is_clear = all([self._hooks.unhook(), self._publishing.unhook()])
        if self.end is _OFF and is_clear:
            self.is_ended = True
            published.stop_waiting()
            self._notify(lambda observer: observer.drop())

    def _rule(self, members: Collection[Member]) -> Iterator[tuple[Member, Ruling | None]]:
        """Each patch, and why this server keeps it off; None if it doesn't. See `model.setups`.

        While any thread is publishing there is none: it is asked again when that call has returned.
        """
        if not members or self._publishing.is_under_way():
            return
        # A draft model's arguments are published for a moment in between. They must not make a
        # patch of the main model "not needed": what the server ever had, it does not lack.
        setup = FEATURES.setup(published.published())
        self._had |= setup.having
        lacking = {use: why for use, why in setup.lacking.items() if use not in self._had}
        setup = dataclasses.replace(setup, lacking=lacking)
        for member in members:
            yield member, self._ruling(member, setup)

    def _ruling(self, member: Member, setup: Setup) -> Ruling | None:
        needed = [self[name] for name in member.patch.requires]
        # Those that apply here, so not those that are built in upstream.
        acting = [each.patch for each in needed if each.verdict and each.verdict.word == "applies"]
        patch = member.patch.proven_in(member.verdict.variant)
        return ruling(patch, acting, setup, lambda of: verified.lacking(self[of.id].verdict))

    def _set(self, member: Member, state: State, reason: str) -> None:
        if member.status != (state, reason):
            if state in _FAULTS or (state == "gated" and member.patch.id in self._demanded):
                self._warn(member, state, reason)  # first: an observer may see the state at once
            member.status = (state, reason)
            self._notify(lambda observer: observer.changed())

    def _notify(self, what: Callable[[Observer], None]) -> None:
        try:
            if self.observer:
                what(self.observer)
        except Exception:
            logger.debug("the observer failed", exc_info=True)

    def _warn(self, member: Member, state: State, reason: str) -> None:
        """Note that a patch is lost, and why, for `_tell`. On a hot path: nothing may block."""
        line = f"sglang-perf-patches: {member.patch.id} is {state}: {reason}"
        if member.patch.id in self._demanded:
            self.loss = self.loss or line
        elif self.end is None:  # else one line is about all of them
            self._lines.append((logging.WARNING, line))

    def _tell(self) -> None:
        """Log what was noted; end the process, with one line, if a demanded patch is lost."""
        if self.loss:
            try:
                self.stop()
                self._settle()
                self._notify(lambda observer: observer.drop())  # even if a busy patch stays on
            finally:
                end_process(self.loss)
        while self._lines:
            logger.log(*self._lines.popleft())

    # -- going live ------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Register for the imports that are missing, and put live the patches that are ready."""
        working = self._working()
        if self.end is not None or not working:
            return
        names = [name for member in working for name in member.verdict.variant.modules()]
        names += [module_of(each.reference) for member in working for each in member.definitions()]
        published.wait_for([*names, _HOOKS, *published.MODULES], self.look_again)
        if is_ready(_HOOKS):
            self._hooks.hook(sys.modules[_HOOKS].HookRegistry, "apply_hooks")
        if is_ready(published.ARGUMENTS):
            self._publishing.hook(*published.publisher())
        for member in self:
            if member.word == "pending" and member.end is None:
                self._attempt(member)

    def _attempt(self, member: Member) -> None:
        if self.is_on(member):  # interrupted after the exchange, before its state was set
            return self._set(member, "live", "")
        missing = [name for name in member.verdict.variant.modules() if not is_ready(name)]
        if missing:
            return self._set(member, "pending", f"{missing[0]} is not imported yet")
        for needed in member.patch.requires:
            if (state := self[needed].word) not in {*_WORKING, "built-in"}:
                return self._remove(member, "failed", f"it needs {needed}, which is {state}")
        for _, ruled in self._rule([member]):
            if ruled is not None:
                return self._set(member, *ruled)
        try:
            self._prepare_and_show(member)
        except Exception as error:
            if not self.is_on(member):
                member.forget()
            if isinstance(error, Gated):
                self._set(member, "gated", str(error))
            elif isinstance(error, Conflict):
                self._remove(member, "conflict", str(error))
            # With a request waiting, an import has ended that may have been missing: try again.
            elif self.is_on(member) or not executor.has_requests():
                logger.debug("%s failed", member.patch.id, exc_info=True)
                self._remove(member, "failed", f"{type(error).__name__}: {error}")

    def _prepare_and_show(self, member: Member) -> None:
        """Run the install function, make the new functions, and show them all or none."""
        member.forget()
        memory.verify_if_changed(member)
        changes = member.install()
        memory.verify_if_changed(member)  # install code may have imported something
        member.layers = [(each, memory.place_of(each, member), make) for each, make in changes]
        if self.show([*self.on(), member]):
            state: State = "gated" if member.gated else "live"
            self._set(member, state, member.gated or member.wrapped)
            member.seen = memory.identity_snapshot(member)
        else:
            member.forget()
            self._set(member, "pending", f"it waits until {threads.waits_for()}")

    def _close(self, patch: str, reason: str) -> None:
        """Called by patched code that now runs only stock's. On a hot path: nothing may block."""
        member = self[patch]
        member.gated = reason
        if member.word == "live":
            self._set(member, "gated", reason)

    # -- what is on ------------------------------------------------------------------------------

    def is_on(self, member: Member) -> bool:
        """Whether a patch is shown; its state may lag behind."""
        return any(layer in board.now.get(place, ()) for _, place, layer in member.layers)

    def on(self) -> list[Member]:
        """The patches that are shown."""
        return [member for member in self if self.is_on(member)]

    def show(self, members: Collection[Member]) -> bool:
        """Show exactly these patches, all at once, if that is safe now. Idempotent.

        It is safe while no thread is inside a place that changes, and no patch with such a place
        holds work. If it was not safe, nothing has changed, and this returns False. It raises what
        the making of a function raises, or an exchange, which was rolled back.
        """
        before, after = self.on(), [member for member in self if member in members]

        def layers(place: Any) -> list[Make]:  # the one nearest to stock first
            return [make for each in after for _, at, make in each.layers if at is place]

        differing = [member for member in self if (member in before) != (member in after)]
        places = [place for member in differing for _, place, _ in member.layers]
        changes = {place: layers(place) for place in places}
        touched = (each for each in before if any(place in changes for _, place, _ in each.layers))
        holding = [each for each in touched if each.drains]
        is_idle = (lambda: not any(each.waits_for() for each in holding)) if holding else None
        return exchange(changes, is_idle)

    def _working(self) -> list[Member]:
        return [member for member in self if member.word in _WORKING]

    # -- removing patches ------------------------------------------------------------------------
    # A patch that is marked for removal has an `end`. It stays on while a thread is inside it or
    # while it holds work. So do the patches that require it.

    def _remove(self, member: Member, state: State, reason: str) -> None:
        """End a patch that is not on; mark one that is on, for `_remove_marked`."""
        if self.is_on(member):
            member.end = member.end or (state, reason)
        else:
            self._end_removed({member: (state, reason)})

    def _remove_all(self, state: State, reason: str) -> None:
        """End every patch with this state; those that are on are removed by `_remove_marked`."""
        for member in self:
            if self.is_on(member):
                member.end = (state, reason)
                if state in _FAULTS:
                    self._warn(member, state, reason)
            elif member.end is None and member.word in _WORKING:
                member.forget()
                self._set(member, state, reason)

    def _remove_marked(self) -> None:
        """Remove all marked patches, each with those that require it; busy ones stay."""
        for member in reversed([each for each in self if each.end is not None]):
            group = with_dependents([member], self.on())
            if self.show([each for each in self.on() if each not in group]):
                forget_results(group)
                self._end_removed({each: each.end for each in group if each.end is not None})
            elif member.end is not None:
                state, reason = member.end
                why = reason and f" ({state}: {reason})"
                waits = f"to be removed{why}: waits until {self._why_on(member)}"
                self._set(member, "live", waits)

    def _why_on(self, member: Member) -> str:
        """What must end before a patch can be removed, worded to follow "until"."""
        waits = (each.waits_for() for each in with_dependents([member], self.on()))
        return next(filter(None, waits), "") or threads.waits_for()

    def _end_removed(self, ends: Mapping[Member, tuple[State, str]]) -> None:
        """Set the final state of patches that are off, and end the patches that require them."""
        for member, (state, reason) in ends.items():
            member.forget()
            member.end = None
            self._set(member, state, reason)
        for member, (state, reason) in ends.items():
            for other in self._working():
                if member.patch.id in other.patch.requires:
                    is_ruled = state in _RULED
                    why = f": {reason}" if is_ruled else f", which is {state}"
                    so: State = state if is_ruled else "failed"
                    self._remove(other, so, f"it needs {member.patch.id}{why}")
