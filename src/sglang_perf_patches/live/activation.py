"""The patches of a process, from the choice to stock again.

In order, for each chosen patch whose verdict is ``applies``:

1. it waits until the last of its modules has been imported (`pending`);
2. every definition it changes or relies on is verified in memory. A replacement by other code is
   a `conflict`; a wrapper is reported and kept;
3. its install function says what to change, and the new objects are made; only then is anything
   changed, all of it or nothing;
4. around sglang's ``HookRegistry.apply_hooks``, which runs after every plugin, and whenever
   somebody looks again, it is verified. If a definition was replaced, the whole patch is removed.

The lock is held while states and names change. It is not held while code is imported or install
code runs: an import waits for other threads' imports, and those may wait for the lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

from ..judge.source import Definition, Tree
from ..judge.verdict import Verdict
from ..model.patch import Patch, Variant, module_of, qualname_of
from ..model.patching import MISSING, Gated, Make
from ..model.selection import Selection
from ..model.state import PatchState, Report, RunFlag, State
from .compiled import Compiled
from .identity import Foreign, check, glimpse, owner_of, raw
from .imports import Imports
from .neighbours import HOOKS, around_apply_hooks, replacements
from .patching import Patching
from .swap import Change, Layer, Slot
from .wrappers import describe

logger = logging.getLogger("sglang_perf_patches")

_WAITING = {"pending", "superseded"}
_WORKING = {"live", "pending", "gated"}
_SERVING = {"live", "pending", "built-in", "superseded", "gated"}  # satisfy a requirement

# An attempt takes milliseconds, unless it waits for an import of the very thread that waits for it.
_OTHER_THREAD_S = 1.0


@dataclass
class _Member:
    """One patch in this process.

    Attributes:
        gate: why it runs only stock's code; "" while it does not.
        slots: what it changes, by reference; noted before the first change.
        seen: what it touches and relies on, as it was when that was verified last.
        preparing: the threads that are preparing it; a thread again from its own imports.
    """

    patch: Patch
    order: int
    state: State = "off"
    reason: str = "not chosen"
    verdict: Verdict | None = None
    ran: RunFlag = field(default_factory=RunFlag)
    gate: str = ""
    slots: dict[str, Slot] = field(default_factory=dict)
    seen: list[Any] = field(default_factory=list)
    preparing: list[int] = field(default_factory=list)

    @property
    def variant(self) -> Variant:
        assert self.verdict is not None
        assert self.verdict.variant is not None
        return self.verdict.variant

    @property
    def definitions(self) -> Mapping[str, Definition]:
        return (self.verdict.definitions if self.verdict else None) or {}


@dataclass(frozen=True)
class _Step:
    """What is to be done about a patch.

    Attributes:
        conclude: does it, with the lock held.
        is_failure: install code raised.
    """

    conclude: Callable[[], None]
    is_failure: bool = False


class Activation:
    """The patches of this process. There is one at a time.

    Attributes:
        is_observed: whether observers know that it has started.
        over: nothing is done any more.
        ended: it was stopped. After a fault it is not: it still reports the fault.
    """

    def __init__(
        self,
        patches: Iterable[Patch],
        chosen: Selection,
        *,
        strict: bool,
        lock: threading.Condition,
        on_change: Callable[[], None],
        on_end: Callable[[], None],
        on_loss: Callable[[str], None],
    ) -> None:
        """Change nothing yet.

        Args:
            patches: all there are, in declared order.
            chosen: those that are to go live.
            strict: whether the loss of one that was chosen by name is more than a warning.
            lock: held while states and names change; its holder may take it again. Threads wait
                on it for each other's attempts to prepare a patch.
            on_change: called with the lock held when the state of a patch changed.
            on_end: called when everything is off again.
            on_loss: called without the lock, under `strict`, with the line to show.
        """
        self.chosen = chosen
        self.is_observed = False
        self.over = False
        self.ended = False
        self._strict = strict
        self._lock = lock
        self._on_change = on_change
        self._on_end = on_end
        self._on_loss = on_loss
        self._version = "unknown"
        self._steps = 0  # counts changes; detects that a step prepared without the lock is stale
        self._messages: list[tuple[int, str]] = []
        self._loss = ""
        self._compiled = Compiled()
        self._imports = Imports(self.advance)
        self._slots: dict[tuple[int, str], Slot] = {}
        self._around_hooks: Slot | None = None
        self._members = {patch.id: _Member(patch, order) for order, patch in enumerate(patches)}

    # -- the way in ------------------------------------------------------------------------------

    def take(self, tree: Tree, verdicts: Iterable[Verdict]) -> None:
        """Note what was judged of a sglang tree, for the patches that are chosen."""
        self._version = tree.version
        self._compiled = Compiled(tree.cache)
        for verdict in verdicts:
            member = self._members[verdict.patch.id]
            member.verdict = verdict
            if member.patch.id not in self.chosen.chosen:
                continue
            if verdict.word == "applies":
                self._set_state(member, "pending", "")
                continue
            self._set_state(member, verdict.word, verdict.reason)
            named = member.patch.id in self.chosen.in_full
            if verdict.word == "refused" or (verdict.word == "absent" and named):
                self._complain(member)

    def advance(self) -> None:
        """Put live what can be by now, and the rest when its modules have been imported."""
        with self._guarded():
            self._advance()

    def look_again(self) -> None:
        """Verify what is live, where anything was changed, and put live what can be by now."""
        with self._guarded():
            self._verify_live(everything=False)
            self._advance()

    def forget_threads(self) -> None:
        """In a forked child: threads that were preparing a patch are not there."""
        thread = threading.get_ident()
        for member in self._members.values():
            member.preparing = [each for each in member.preparing if each == thread]

    def save(self) -> None:
        """Keep what was learned about the tree for later processes; one thread at a time."""
        self._compiled.save()

    def report(self) -> Report:
        """What happened to each patch."""
        with self._lock:
            states = tuple(
                PatchState(patch, member.state, member.reason, member.ran.seen)
                for patch, member in self._members.items()
            )
            return Report(self.chosen.text, self._version, states)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Let no fault of ours reach sglang: after one, every patch is removed."""
        try:
            yield
            self._speak()
        except Exception as error:
            logger.debug("unexpected", exc_info=True)
            self._abandon(f"{type(error).__name__}: {error}")
        except BaseException:  # an interruption, which the caller must see
            self.stop()
            raise

    def _advance(self) -> None:
        working = [m for m in self._members.values() if m.state in _WAITING | _WORKING]
        if self.over or not working:
            return
        modules = [name for member in working for name in member.variant.modules()]
        self._imports.wait_for([*modules, HOOKS])
        if self._around_hooks is None and self._imports.is_ready(HOOKS):
            self._watch_hooks()
        before = None
        while not self.over and before != (before := self._states()):
            # Repeat after a change: if a patch fails, one that it superseded may replace it.
            for member in self._members.values():
                self._go_on(member)

    def _states(self) -> list[State]:
        return [member.state for member in self._members.values()]

    # -- one patch -------------------------------------------------------------------------------

    def _go_on(self, member: _Member) -> None:
        """Advance a waiting patch as far as possible now."""
        while not self._attempt(member):
            # Nobody may return from the last import with a patch still waiting. Wait for the
            # other thread, and try again: it may have looked before that module was there.
            with self._lock:
                if not self._lock.wait_for(lambda: not member.preparing, _OTHER_THREAD_S):
                    self._steps += 1  # it waits for an import of ours; it must look again
                    return

    def _attempt(self, member: _Member) -> bool:
        """Prepare a waiting patch and do what is to be done.

        Returns:
            False if preparing it failed while another thread was preparing it too, which decides
            nothing: the module that was missing may be the one which that thread is importing.
        """
        thread = threading.get_ident()
        try:
            with self._lock:
                member.preparing.append(thread)
            while True:
                with self._lock:
                    steps = self._steps
                    if self.over or member.state not in _WAITING:
                        return True
                step = self._prepare(member)
                with self._lock:
                    if self.over or member.state not in _WAITING:
                        return True
                    if steps != self._steps:  # the prepared step may be stale
                        continue
                    if step.is_failure and member.preparing.count(thread) > 1:
                        return True  # an outer frame of this thread is importing, and decides
                    if step.is_failure and len(member.preparing) > 1:
                        return False
                    step.conclude()
                    return True
        finally:
            with self._lock:
                if thread in member.preparing:  # an interruption may have come before
                    member.preparing.remove(thread)
                self._lock.notify_all()

    def _prepare(self, member: _Member) -> _Step:
        """Find what is to be done, without doing it: imports and runs install code."""
        better = self._superseding(member)
        if better:
            reason = f"{better} does its work and more"
            return _Step(partial(self._set_state, member, "superseded", reason))
        variant = member.variant
        missing = [name for name in variant.modules() if not self._imports.is_ready(name)]
        if missing:
            reason = f"{missing[0]} is not imported yet"
            return _Step(partial(self._set_state, member, "pending", reason))
        for needed in member.patch.requires:
            state = self._members[needed].state
            if state not in _SERVING:
                reason = f"it needs {needed}, which is {state}"
                return _Step(partial(self._end, member, "failed", reason))
        try:
            install = variant.load()
            wrappers = self._verify(member)
            member.gate = ""
            patching = Patching(
                member.patch.id,
                variant,
                (member.verdict.release if member.verdict else None) or "",
                member.ran,
                partial(self._close, member),
            )
            install(patching)
            named = {reference for reference, _ in patching.changes}
            unchanged = set(variant.targets + variant.adds) - named
            if unchanged:
                raise RuntimeError(
                    f"its install function did not change {min(unchanged)} unchanged"
                )
            changes = self._changes(member, patching.changes)
        except Gated as gate:
            return _Step(partial(self._set_state, member, "gated", str(gate)))
        except Foreign as foreign:
            return _Step(partial(self._end, member, "conflict", str(foreign)))
        except Exception as error:
            logger.debug("%s failed", member.patch.id, exc_info=True)
            reason = f"{type(error).__name__}: {error}"
            return _Step(partial(self._end, member, "failed", reason), is_failure=True)
        return _Step(partial(self._go_live, member, changes, wrappers))

    def _superseding(self, member: _Member) -> str | None:
        """The patch whose presence makes this one unnecessary, if any."""
        for better in member.patch.superseded_by:
            if self._members[better].state in {"live", "pending"}:
                return better
        return None

    def _close(self, member: _Member, reason: str) -> None:
        """A patch reports that it now runs only stock's code."""
        with self._lock:
            member.gate = reason
            if member.state == "live":
                self._set_state(member, "gated", reason)

    def _changes(self, member: _Member, named: list[tuple[str, Make]]) -> dict[str, Change]:
        """What each slot is to show, by the reference that it is for."""
        makes: dict[str, list[Make]] = {}
        for reference, make in named:
            makes.setdefault(reference, []).append(make)
        return {
            reference: self._slot(member, reference).with_layers(
                Layer(member.order, member.patch.id, make) for make in of_reference
            )
            for reference, of_reference in makes.items()
        }

    def _slot(self, member: _Member, reference: str) -> Slot:
        owner, name = owner_of(reference)
        slot = self._slots.get((id(owner), name))
        if slot is not None and slot.layers:
            return slot
        definition = member.definitions.get(reference)
        stock = check(definition, self._compiled) if definition else None
        if stock and (stock.wrappers or isinstance(owner, ModuleType)):
            return Slot(owner, name, stock.function, inside=stock.function)
        return Slot(owner, name, raw(owner, name))

    def _go_live(self, member: _Member, changes: Mapping[str, Change], wrappers: list[str]) -> None:
        """Change everything that a patch wants changed, or nothing."""
        # Record all changes before the first one, so that they can be undone wherever this ends.
        member.slots = {reference: change.slot for reference, change in changes.items()}
        self._slots |= {(id(slot.owner), slot.name): slot for slot in member.slots.values()}
        before = [slot.shown() for slot in member.slots.values()]
        self._steps += 1
        try:
            for change in changes.values():
                change.apply()
        except BaseException as error:
            for change in before:
                change.apply()
            member.slots = {}
            if not isinstance(error, Exception):
                raise
            self._end(member, "failed", f"{type(error).__name__}: {error}")
            return
        if member.gate:
            self._set_state(member, "gated", member.gate)
        else:
            self._set_state(member, "live", _around(wrappers))
        member.seen = self._glimpse(member)

    def _take_off(self, member: _Member) -> None:
        self._steps += 1
        for slot in reversed(member.slots.values()):
            slot.without(member.patch.id).apply()
        member.slots = {}

    def _end(self, member: _Member, state: State, reason: str) -> None:
        """Remove a patch for good and log it; patches that need it are removed too."""
        self._take_off(member)
        self._set_state(member, state, reason)
        self._complain(member)
        for other in list(self._working()):
            if member.patch.id in other.patch.requires:
                self._end(other, "failed", f"it needs {member.patch.id}, which is {state}")

    def _set_state(self, member: _Member, state: State, reason: str) -> None:
        with self._lock:
            if (member.state, member.reason) != (state, reason):
                self._steps += 1
                member.state, member.reason = state, reason
                self._on_change()

    def _complain(self, member: _Member) -> None:
        line = f"sglang-perf-patches: {member.patch.id} is {member.state}: {member.reason}"
        if self._strict and member.patch.id in self.chosen.by_name:
            self._loss = self._loss or line
        else:
            self._messages.append((logging.WARNING, line))

    def _speak(self) -> None:
        """Log what is due, and report a loss under STRICT; without the lock."""
        if self._loss:
            self._on_loss(self._loss)
        while self._messages:
            level, line = self._messages.pop(0)
            logger.log(level, line)

    # -- whether names still hold what they should -----------------------------------------------

    def _verify(self, member: _Member) -> list[str]:
        """Check every definition of a patch in memory.

        Returns:
            the foreign wrappers around its targets.

        Raises:
            Foreign: other code replaced one, or already added what the patch would add.
        """
        variant = member.variant
        wrappers: list[str] = []
        for definition in member.definitions.values():
            for each in (definition, *definition.members):
                reference = each.reference
                if not self._imports.is_ready(module_of(reference)):
                    continue  # a dependency whose import has not started or not finished
                slot = self._shown_slot(member, reference)
                if slot is not None:
                    wrappers += self._require_ours(reference, slot, each)
                    continue
                stock = check(each, self._compiled)
                if stock is not None and reference in variant.targets:
                    wrappers += stock.wrappers
        for reference in variant.adds:
            slot = self._shown_slot(member, reference)
            if slot is not None:
                wrappers += self._require_ours(reference, slot)
                continue
            owner, name = owner_of(reference)
            if raw(owner, name) is not MISSING:
                raise Foreign(f"{reference} exists already: {describe(raw(owner, name))}")
        return wrappers

    def _shown_slot(self, member: _Member, reference: str) -> Slot | None:
        """The slot that a reference leads to, where patches of ours show something there.

        Raises:
            Foreign: it no longer leads to what this patch changed.
        """
        owner, name = owner_of(reference)
        own = member.slots.get(reference)
        if own is not None and own.owner is not owner:
            raise Foreign(
                f"{reference} is stock's own again: its class was defined again, "
                f"for example by a reload of {module_of(reference)}"
            )
        slot = self._slots.get((id(owner), name))
        return slot if slot is not None and slot.layers else None

    def _require_ours(
        self, reference: str, slot: Slot, definition: Definition | None = None
    ) -> tuple[str, ...]:
        """The foreign wrappers around what a slot shows.

        Raises:
            Foreign: it is not there any more.
        """
        wrappers = slot.wrappers(definition.decorators if definition else 0)
        if wrappers is not None:
            return wrappers
        try:
            again = definition is not None and check(definition, self._compiled) is not None
        except Foreign:
            again = False
        if again:
            raise Foreign(
                f"{reference} is stock's own again: somebody restored it, "
                f"or reloaded {module_of(reference)}"
            )
        held = raw(slot.owner, slot.name)
        if held is MISSING:
            raise Foreign(f"{reference} is gone from memory")
        raise Foreign(f"{reference} is replaced by {describe(held)}")

    def _glimpse(self, member: _Member) -> list[Any]:
        """Objects that stay the same ones while what a patch touches and relies on does."""
        variant = member.variant
        inside = [slot.inside for slot in member.slots.values()]
        return [
            *glimpse((*variant.targets, *variant.adds, *variant.depends)),
            *glimpse(
                each.reference for found in member.definitions.values() for each in found.members
            ),
            *(getattr(function, "__code__", None) for function in inside),
        ]

    def _verify_live(self, *, everything: bool) -> None:
        """Verify what is live, where anything was changed or `everything`; end what is undone."""
        with self._lock:
            for member in list(self._working()):
                if self.over or member.state != "live":
                    continue
                now = self._glimpse(member)
                if not everything and _are_same(now, member.seen):
                    continue
                try:
                    wrappers = self._verify(member)
                except Foreign as foreign:
                    self._end(member, "conflict", str(foreign))
                else:
                    member.seen = now
                    self._set_state(member, "live", _around(wrappers))

    def _working(self) -> Iterator[_Member]:
        return (member for member in self._members.values() if member.state in _WORKING)

    # -- other plugins ---------------------------------------------------------------------------

    def _watch_hooks(self) -> None:
        change = around_apply_hooks(self._before_hooks, self._after_hooks)
        with self._lock:
            if self._around_hooks is None and not self.over:
                self._around_hooks = change.slot
                change.apply()

    def _before_hooks(self, registry: Any) -> None:
        """Step aside from what a plugin is about to replace, so that it meets stock's object."""
        if self.over:
            return
        with self._guarded(), self._lock:
            replaced = dict(replacements(registry))
            for member in list(self._working()):
                variant = member.variant
                for reference in variant.targets + variant.adds + variant.depends:
                    whose = _whose(reference, replaced)
                    if whose and member.state in _WORKING:
                        self._end(member, "conflict", f"{reference} is replaced by {whose}")

    def _after_hooks(self) -> None:
        """Verify again what is live, and what a removal has uncovered."""
        if self.over:
            return
        with self._guarded():
            self._verify_live(everything=True)
            self._advance()

    # -- the way out -----------------------------------------------------------------------------

    def stop(self) -> None:
        """Restore stock's own object under every name, whatever was going on."""
        try:
            self.ended = True
            self._restore()
        except BaseException:
            self.ended = True
            self._restore()
            raise
        finally:
            self._on_end()

    def _abandon(self, reason: str) -> None:
        """After an unexpected fault the state is unknown: restore stock, and log it."""
        lost = [m for m in self._members.values() if m.state in _WORKING | _WAITING]
        self._restore()
        for member in lost:
            self._set_state(member, "failed", reason)
            if self._strict and member.patch.id in self.chosen.by_name:
                self._complain(member)
        line = f"sglang-perf-patches: every patch is removed: {reason}"
        self._messages.append((logging.ERROR, line))
        self._speak()

    def _restore(self) -> None:
        with self._lock:
            self.over = True
            self._steps += 1
            hooks = [self._around_hooks] if self._around_hooks else []
            for slot in [*reversed(self._slots.values()), *hooks]:
                try:
                    slot.clear()
                except Exception:
                    logger.exception("sglang-perf-patches: %s can't be restored", slot.name)
            for member in self._members.values():
                member.slots = {}


def _around(wrappers: Iterable[str]) -> str:
    text = "; ".join(wrappers)
    return f"wrapped by {text}" if text else ""


def _are_same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


def _whose(reference: str, replaced: Mapping[str, str]) -> str | None:
    """Whose hook replaces a definition, or something around it."""
    dotted = f"{module_of(reference)}.{qualname_of(reference)}"
    for target, whose in replaced.items():
        if dotted == target or dotted.startswith(f"{target}."):
            return whose
    return None
