"""The patches of this process: each one, the registry of all, and the notices about them.

`Registry.show` is the only function that changes which patches the dispatch table shows.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..compat.source import Definition
from ..compat.verdict import Verdict
from ..model.patch import Patch, Variant
from ..model.state import Observer, RunFlag, State
from .dispatch_table import at_rest, dispatch, has_gil, is_alone, runs_here
from .swap import Layer, Slot

logger = logging.getLogger("sglang_perf_patches")

WORKING = frozenset({"live", "pending", "gated", "not needed"})
SERVING = frozenset({"live", "pending", "built-in", "gated", "not needed"})
"""States that satisfy a requirement."""
_RULED = frozenset({"gated", "not needed"})
"""States that a ruling gives (`model.ruling`). They are no fault, so no warning is logged."""


@dataclass(frozen=True)
class Drain:
    """Work that a patch holds between its calls.

    Attributes:
        is_idle: whether it holds none.
        waits_for: what ends that work, worded to follow "until".
    """

    is_idle: Callable[[], bool]
    waits_for: str


@dataclass(eq=False)
class PatchRuntime:
    """One patch in this process.

    Attributes:
        patch: its declaration.
        status: its state and the reason, in one object: a reader never sees half of a change.
        verdict: on the installed sglang.
        ran: its run flag.
        gate: why its code now runs only stock's; "" if it doesn't.
        slots: reference → the slot that it changes; set before the first change.
        layers: its layers, each with its slot, in the order of their declaration.
        seen: the identity snapshot of the last verification.
        drains: the work that it may hold between its calls.
        end: the state and reason it gets once it is removed; None unless it is marked for that.
    """

    patch: Patch
    status: tuple[State, str] = ("off", "not chosen")
    verdict: Verdict | None = None
    ran: RunFlag = field(default_factory=RunFlag)
    gate: str = ""
    slots: dict[str, Slot] = field(default_factory=dict)
    layers: list[tuple[Slot, Layer]] = field(default_factory=list)
    seen: list[Any] = field(default_factory=list)
    drains: tuple[Drain, ...] = ()
    end: tuple[State, str] | None = None

    @property
    def state(self) -> State:
        """The state, without its reason."""
        return self.status[0]

    @property
    def shown(self) -> tuple[State, str]:
        """The status; the reason of a live patch may be its own note."""
        state, reason = self.status
        return state, reason or (self.ran.note if state == "live" else "")

    @property
    def variant(self) -> Variant:
        """The variant that applies here; only for a patch whose verdict is ``applies``."""
        assert self.verdict is not None
        assert self.verdict.variant is not None
        return self.verdict.variant

    @property
    def definitions(self) -> Mapping[str, Definition]:
        """Reference → definition that it changes or relies on, as read from the source."""
        return (self.verdict.definitions if self.verdict else None) or {}

    def each_definition(self) -> Iterator[Definition]:
        """`definitions`, and the functions of those that are classes."""
        for definition in self.definitions.values():
            yield definition
            yield from definition.members

    def waits_for(self) -> str:
        """The work that must end before it may be removed; "" if it holds none."""
        for drain in self.drains:
            try:
                if drain.is_idle():
                    continue
            except Exception:  # unknown counts as busy
                logger.debug("%s: is it idle?", self.patch.id, exc_info=True)
            return drain.waits_for
        return ""

    def forget(self) -> None:
        """Drop its slots and layers, and what they computed."""
        for slot in self.slots.values():
            slot.forget(self.patch.id)
        self.slots, self.layers = {}, []


class Registry:
    """Every patch, in declared order, which is also the order of layers in a shared slot.

    Attributes:
        notices: log what becomes of them.
        over: no further patch goes live.
    """

    def __init__(self, patches: Iterable[Patch], notices: Notices) -> None:
        self.notices = notices
        self.over = False
        self._members = {patch.id: PatchRuntime(patch) for patch in patches}

    def __iter__(self) -> Iterator[PatchRuntime]:
        return iter(self._members.values())

    def __getitem__(self, patch: str) -> PatchRuntime:
        return self._members[patch]

    def is_on(self, member: PatchRuntime) -> bool:
        """Whether the dispatch table shows a patch; its state may lag behind."""
        return member.patch.id in dispatch.now.patches

    def on(self) -> list[PatchRuntime]:
        """The patches that the dispatch table shows."""
        return [member for member in self if self.is_on(member)]

    def working(self) -> list[PatchRuntime]:
        """The patches that are live or may become live."""
        return [member for member in self if member.state in WORKING]

    def show(self, members: Collection[PatchRuntime]) -> bool:
        """Make the dispatch table show exactly these patches, all at once, if that is safe now.

        It is safe while no thread is inside a function that changes, and no patch with a changing
        slot holds work. Idempotent.

        Args:
            members: the patches that are on afterwards.

        Returns:
            False if it was not safe: nothing has changed.

        Raises:
            Exception: from making a layer (then nothing has changed), or from placing a forwarder
                or settling memory (`is_on` tells whether the table was exchanged).
        """
        before, after = self.on(), [member for member in self if member in members]
        coming = _slots(member for member in after if member not in before)
        slots = _slots(member for member in before if member not in after) | coming
        changes = {slot: slot.made_of(_layers(after, slot)) for slot in slots}
        forwarders = [code for slot in slots for code in slot.forwarder_codes()]
        # `at_rest` checks the other threads only.
        if runs_here(forwarders):
            return False
        codes = [*forwarders, *(code for slot in coming for code in slot.codes())]
        holding = [each for each in before if not slots.keys().isdisjoint(each.slots.values())]
        functions: dict[str, Callable[..., Any]] = {}
        for slot, change in changes.items():
            functions |= slot.functions(change)
        patches = frozenset(member.patch.id for member in after)
        table = dispatch.now.replaced(changes, functions, patches)

        def exchange() -> None:
            _each(slot.place for slot in coming)
            dispatch.now = table  # one statement: an interruption leaves all of it or nothing
            _each(partial(slot.settle, is_at_rest=True) for slot in slots)

        return at_rest(codes, exchange, lambda: not any(each.waits_for() for each in holding))

    def made_with(self, member: PatchRuntime) -> None:
        """Compute the values that one more patch would bring; the slots keep them for `show`."""
        with_it = [each for each in self if each is member or self.is_on(each)]
        for slot in member.slots.values():
            slot.made_of(_layers(with_it, slot))

    def settle(self) -> None:
        """Put stock's objects back in every slot without layers.

        Raises:
            Exception: the first fault; the other slots are settled nevertheless.
        """
        _each(slot.settle for slot in dispatch.slots.values() if not slot.layers)

    def is_clear(self) -> bool:
        """Whether no patch is shown and no slot has anything left to remove."""
        return not self.on() and all(
            slot.layers or slot.is_left() for slot in dispatch.slots.values()
        )

    # -- removing patches ------------------------------------------------------------------------
    # A patch that is marked for removal has an `end`. It stays on while a thread is inside it or
    # while it holds work. So do the patches that require it and those that share a slot with it.

    def lose(self, member: PatchRuntime, state: State, reason: str) -> None:
        """End a patch that is not on; mark one that is on, for `remove_marked`."""
        if self.is_on(member):
            member.end = member.end or (state, reason)
        else:
            self._end({member: (state, reason)})

    def end_all(self, state: State, reason: str) -> None:
        """End every patch with this state; those that are on are removed by `remove_marked`."""
        for member in self:
            if self.is_on(member):
                member.end = (state, reason)
            elif member.end is None and member.state in WORKING:
                member.forget()
                self.notices.set_status(member, state, reason)

    def remove_marked(self) -> None:
        """Remove all marked patches, each group in one swap; busy groups stay for the next call."""
        leaving = [member for member in self if member.end is not None]
        for group in _groups(with_dependents(leaving, self.on())):
            slots = _slots(group)
            if self.show([each for each in self.on() if each not in group]):
                for slot in slots:
                    slot.forget_results()
                self._end({each: each.end for each in group if each.end is not None})
                continue
            for member in group:
                if member.end is not None:
                    state, reason = member.end
                    why = reason and f" ({state}: {reason})"
                    waits = f"to be removed{why}: waits until {why_it_stays(group)}"
                    self.notices.set_status(member, "live", waits)

    def waits_for(self) -> str:
        """``ID until REASON`` for each marked patch; "" if none is marked."""
        leaving = [member for member in self if member.end is not None]
        groups = _groups(with_dependents(leaving, self.on()))
        lines = {member.patch.id: why_it_stays(group) for group in groups for member in group}
        return "; ".join(f"{each.patch.id} until {lines[each.patch.id]}" for each in leaving)

    def _end(self, ends: Mapping[PatchRuntime, tuple[State, str]]) -> None:
        """Set the final state of patches that are off, and end the patches that require them."""
        for member, (state, reason) in ends.items():
            member.forget()
            member.end = None
            self.notices.set_status(member, state, reason)
            if state not in _RULED | {"off"}:
                self.notices.complain(member)
        for member, (state, reason) in ends.items():
            for other in self.working():
                if member.patch.id in other.patch.requires:
                    is_ruled = state in _RULED
                    why = f": {reason}" if is_ruled else f", which is {state}"
                    so: State = state if is_ruled else "failed"
                    self.lose(other, so, f"it needs {member.patch.id}{why}")


def _each(steps: Iterable[Callable[[], None]]) -> None:
    """Take every step, then raise the first fault."""
    failed: Exception | None = None
    for step in steps:
        try:
            step()
        except Exception as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _slots(members: Iterable[PatchRuntime]) -> dict[Slot, None]:
    """The slots of members, each once, in order."""
    return dict.fromkeys(slot for member in members for slot in member.slots.values())


def _layers(members: Iterable[PatchRuntime], slot: Slot) -> list[Layer]:
    """The layers of members in a slot, the one nearest to stock first."""
    return [layer for member in members for own, layer in member.layers if own is slot]


def with_dependents(
    members: Iterable[PatchRuntime], among: Collection[PatchRuntime]
) -> list[PatchRuntime]:
    """Members, and those of `among` that require any of them, directly or not."""
    together = list(dict.fromkeys(members))
    for member in together:  # the loop also visits what it appends
        id = member.patch.id
        together += [each for each in among if id in each.patch.requires and each not in together]
    return together


def _groups(members: Iterable[PatchRuntime]) -> list[list[PatchRuntime]]:
    """Members grouped so that those which require each other or share a slot are together."""
    groups: list[list[PatchRuntime]] = []
    for member in members:
        linked = [group for group in groups if any(_are_linked(member, each) for each in group)]
        groups = [group for group in groups if group not in linked]
        groups.append([*(each for group in linked for each in group), member])
    return groups


def _are_linked(one: PatchRuntime, other: PatchRuntime) -> bool:
    return (
        one.patch.id in other.patch.requires
        or other.patch.id in one.patch.requires
        or not {*one.slots.values()}.isdisjoint(other.slots.values())
    )


def why_it_stays(members: Iterable[PatchRuntime]) -> str:
    """What must end before members can be removed together, worded to follow "until"."""
    waits = next(filter(None, (member.waits_for() for member in members)), "")
    if not waits and not has_gil() and not is_alone():
        return "no other thread runs, as this Python has no GIL"
    return waits or "no thread is inside it"


class Notices:
    """Logs each notice once, and keeps faults of observers from the patches.

    Args:
        demanded: ids of patches whose loss ends the process instead of being logged.
        observers: told of each change.
    """

    def __init__(self, demanded: Collection[str], observers: Iterable[Observer]) -> None:
        self._demanded = demanded
        self._observers = observers
        self._messages: deque[tuple[int, str]] = deque()
        self._loss = ""
        self._is_ending = False

    def set_status(self, member: PatchRuntime, state: State, reason: str) -> None:
        """Set the state of a patch, and tell the observers if it changed."""
        if member.status != (state, reason):
            member.status = (state, reason)
            if state == "gated" and member.patch.id in self._demanded:
                self.complain(member)
            self.tell(lambda observer: observer.changed())

    def tell(self, what: Callable[[Observer], None]) -> None:
        """Call every observer; their faults are only logged."""
        for observer in self._observers:
            try:
                what(observer)
            except Exception:
                logger.debug("an observer failed", exc_info=True)

    def complain(self, member: PatchRuntime) -> None:
        """Note that a patch is lost, and why, for `speak`."""
        state, reason = member.end or member.status
        line = f"sglang-perf-patches: {member.patch.id} is {state}: {reason}"
        if member.patch.id in self._demanded:
            self._loss = self._loss or line
        else:
            self._messages.append((logging.WARNING, line))

    def lose_all(self, reason: str, lost: Collection[PatchRuntime]) -> None:
        """Note that every patch is removed, and each demanded one among `lost`, for `speak`."""
        for member in lost:
            if member.patch.id in self._demanded:
                self.complain(member)
        line = f"sglang-perf-patches: every patch is removed: {reason}"
        self._messages.append((logging.ERROR, line))

    def speak(self) -> str:
        """Log the notices. Outside of the executor, because a log handler may call us again.

        Returns:
            the line about the first demanded patch that was lost, once; then it is the only one.
        """
        if self._loss:
            loss, self._is_ending = "" if self._is_ending else self._loss, True
            return loss
        while self._messages:
            try:
                level, line = self._messages.popleft()
            except IndexError:  # another thread took it
                break
            logger.log(level, line)
        return ""
