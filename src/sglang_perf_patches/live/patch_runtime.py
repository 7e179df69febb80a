"""The patches of this process: one, all together, and what is reported of them.

The dispatch table shows the layers of the patches that are on. `Registry.show` is the one function
that changes which those are.
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
from ..model.state import RunFlag, State
from .dispatch_table import DispatchTable, has_gil, is_alone, runs_here
from .swap import Layer, Slot

logger = logging.getLogger("sglang_perf_patches")

WORKING = frozenset({"live", "pending", "gated", "not needed"})
SERVING = frozenset({"live", "pending", "built-in", "gated", "not needed"})
"""States that satisfy a requirement."""


@dataclass(frozen=True)
class Drain:
    """Work that a patch holds between its calls.

    Attributes:
        is_idle: whether it holds none.
        waits_for: what it waits for until then, after "until".
    """

    is_idle: Callable[[], bool]
    waits_for: str


@dataclass(eq=False)
class PatchRuntime:
    """One patch in this process.

    Attributes:
        patch: its declaration.
        status: its state, and why; one object, so that no reader sees half of a change.
        verdict: what was judged of its code.
        ran: its run flag.
        gate: why it runs only stock's code; "" while it does not.
        slots: what it changes, by reference; noted before the first change.
        layers: what it makes of them, by reference.
        seen: what it touches and relies on, as it was when that was verified last.
        drains: what it holds.
        end: the state and the reason that it is to have, once it has been taken off.
    """

    patch: Patch
    status: tuple[State, str] = ("off", "not chosen")
    verdict: Verdict | None = None
    ran: RunFlag = field(default_factory=RunFlag)
    gate: str = ""
    slots: dict[str, Slot] = field(default_factory=dict)
    layers: dict[str, tuple[Layer, ...]] = field(default_factory=dict)
    seen: list[Any] = field(default_factory=list)
    drains: tuple[Drain, ...] = ()
    end: tuple[State, str] | None = None

    @property
    def state(self) -> State:
        """What became of it."""
        return self.status[0]

    @property
    def variant(self) -> Variant:
        """The body of ours that applies."""
        assert self.verdict is not None
        assert self.verdict.variant is not None
        return self.verdict.variant

    @property
    def definitions(self) -> Mapping[str, Definition]:
        """What it changes and relies on, as the source has it."""
        return (self.verdict.definitions if self.verdict else None) or {}

    def each_definition(self) -> Iterator[Definition]:
        """The same, with the functions of those that are classes."""
        for definition in self.definitions.values():
            yield definition
            yield from definition.members

    def waits_for(self) -> str:
        """What must end before it may be taken off; "" if nothing must."""
        for drain in self.drains:
            try:
                if drain.is_idle():
                    continue
            except Exception:  # it can't tell
                logger.debug("%s: is it idle?", self.patch.id, exc_info=True)
            return drain.waits_for
        return ""

    def layers_at(self, slot: Slot) -> Iterator[Layer]:
        """What it makes of a slot."""
        for reference, own in self.slots.items():
            if own is slot:
                yield from self.layers[reference]

    def forget(self) -> None:
        """Have nothing more to show."""
        for slot in self.slots.values():
            slot.forget(self.patch.id)
        self.slots, self.layers = {}, {}


class Registry:
    """Every patch there is, in declared order, and what they show.

    Attributes:
        dispatch: what this process shows.
        over: nothing goes live any more.
    """

    def __init__(self, patches: Iterable[Patch], dispatch: DispatchTable) -> None:
        self.dispatch = dispatch
        self.over = False
        self._members = {patch.id: PatchRuntime(patch) for patch in patches}

    def __iter__(self) -> Iterator[PatchRuntime]:
        """Each member, in declared order."""
        return iter(self._members.values())

    def __getitem__(self, patch: str) -> PatchRuntime:
        """The member of a patch, by its id."""
        return self._members[patch]

    def is_on(self, member: PatchRuntime) -> bool:
        """Whether the dispatch table shows a patch, whatever its state says so far."""
        return member.patch.id in self.dispatch.now.patches

    def on(self) -> list[PatchRuntime]:
        """Those that the dispatch table shows."""
        return [member for member in self if self.is_on(member)]

    def working(self) -> list[PatchRuntime]:
        """Those that are live, or may be."""
        return [member for member in self if member.state in WORKING]

    def show(self, members: Collection[PatchRuntime]) -> bool:
        """Have the dispatch table show exactly these patches, all at once, if that is safe now.

        It is while no thread is in a call that this concerns, and while no patch holds work that
        shows something in a place that changes. May be repeated.

        Args:
            members: those that are on then. What they make is made here, if it is not kept.

        Returns:
            False if it was not safe: nothing has changed.

        Raises:
            Exception: what makes a layer, or puts it into its place; then nothing has changed, or
                all that is to be seen.
        """
        before, after = self.on(), [member for member in self if member in members]
        coming = _slots(member for member in after if member not in before)
        slots = _slots(member for member in before if member not in after) | coming
        changes = [slot.made_of(_layers(after, slot)) for slot in slots]
        forwarders = [code for slot in slots for code in slot.forwarder_codes()]
        if runs_here(forwarders):
            return False
        codes = [*forwarders, *(code for slot in coming for code in slot.codes())]
        holding = [each for each in before if not slots.keys().isdisjoint(each.slots.values())]
        functions: dict[str, Callable[..., Any]] = {}
        for change in changes:
            functions |= change.slot.functions(change)
        table = self.dispatch.now.replaced(
            {change.slot: change for change in changes},
            functions,
            frozenset(member.patch.id for member in after),
        )
        return self.dispatch.exchange(
            *(table, codes),
            is_due=lambda: not any(member.waits_for() for member in holding),
            before=lambda: _each(slot.place for slot in coming),
            after=lambda: _each(partial(slot.settle, is_at_rest=True) for slot in slots),
        )

    def made_with(self, member: PatchRuntime) -> None:
        """Make what the dispatch table would show with one more patch; it is kept."""
        with_it = [each for each in self if each is member or self.is_on(each)]
        for slot in member.slots.values():
            slot.made_of(_layers(with_it, slot))

    def settle(self) -> None:
        """Take what the dispatch table does not show out of memory.

        Raises:
            Exception: of the first slot where that failed; the others were settled.
        """
        _each(slot.settle for slot in self.dispatch.slots.values() if not slot.layers)

    def is_clear(self) -> bool:
        """Whether nothing of ours is shown, nor left in stock's places."""
        return not self.on() and all(
            slot.layers or slot.is_left() for slot in self.dispatch.slots.values()
        )


def _each(steps: Iterable[Callable[[], None]]) -> None:
    """Take every step, then raise what the first that failed has raised."""
    failed: Exception | None = None
    for step in steps:
        try:
            step()
        except Exception as error:
            failed = failed or error
    if failed is not None:
        raise failed


def _slots(members: Iterable[PatchRuntime]) -> dict[Slot, None]:
    """The places in which members show something, each once."""
    return dict.fromkeys(slot for member in members for slot in member.slots.values())


def _layers(members: Iterable[PatchRuntime], slot: Slot) -> list[Layer]:
    """What members make of a slot, the one that is nearest to stock first."""
    return [layer for member in members for layer in member.layers_at(slot)]


def with_dependents(
    members: Iterable[PatchRuntime], among: Collection[PatchRuntime]
) -> list[PatchRuntime]:
    """Some members, and those among others that need any of them, directly or not."""
    together = list(dict.fromkeys(members))
    for member in together:  # which grows
        id = member.patch.id
        together += [each for each in among if id in each.patch.requires and each not in together]
    return together


def why_it_stays(members: Iterable[PatchRuntime]) -> str:
    """What must end before members can come off together, after "until"."""
    waits = next(filter(None, (member.waits_for() for member in members)), "")
    if not waits and not has_gil() and not is_alone():
        return "no other thread runs, as this Python has no GIL"
    return waits or "no thread is in a call of it"


class Notices:
    """Says each thing once, and no fault of an observer's reaches the patches."""

    def __init__(
        self,
        demanded: Collection[str],
        on_change: Callable[[], None],
        on_loss: Callable[[str], None],
    ) -> None:
        """Have nothing to say yet.

        Args:
            demanded: ids whose loss is more than a warning.
            on_change: called when the state of a patch changed.
            on_loss: called by `speak` with the line to show, where a demanded one is lost.
        """
        self._demanded = demanded
        self._on_change = on_change
        self._on_loss = on_loss
        self._messages: deque[tuple[int, str]] = deque()
        self._loss = ""
        self._is_ending = False

    def set_status(self, member: PatchRuntime, state: State, reason: str) -> None:
        """Note what became of a patch."""
        if member.status != (state, reason):
            member.status = (state, reason)
            if state == "gated" and member.patch.id in self._demanded:
                self.complain(member)
            self.tell(self._on_change)

    def tell(self, observers: Callable[[], None]) -> None:
        """Call observers."""
        try:
            observers()
        except Exception:
            logger.debug("an observer failed", exc_info=True)

    def complain(self, member: PatchRuntime) -> None:
        """Say that a patch is lost, and why."""
        state, reason = member.end or member.status
        line = f"sglang-perf-patches: {member.patch.id} is {state}: {reason}"
        if member.patch.id in self._demanded:
            self._loss = self._loss or line
        else:
            self._messages.append((logging.WARNING, line))

    def lose_all(self, reason: str, lost: Collection[PatchRuntime]) -> None:
        """Say that every patch is removed; of those that are demanded too."""
        for member in lost:
            if member.patch.id in self._demanded:
                self.complain(member)
        line = f"sglang-perf-patches: every patch is removed: {reason}"
        self._messages.append((logging.ERROR, line))

    def speak(self) -> None:
        """Log what is due, and report a loss; outside of the executor."""
        if self._is_ending:
            return  # the line of the loss is the only one
        if self._loss:
            self._is_ending = True
            self._on_loss(self._loss)
        while self._messages:
            try:
                level, line = self._messages.popleft()
            except IndexError:  # another thread took it
                return
            logger.log(level, line)
