"""Showing stock's code for a while in place of patches that stay live: for measurements.

What is paused is off the board as if it had been taken off, so stock's own objects are back in
their places. But it keeps its layers, and comes back as the same objects. Meanwhile nothing else
goes live, and what is paused is not verified, since nothing of it is there.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..model.state import State
from . import stacks
from .member import Member
from .notices import Notices
from .roster import Roster, with_dependents
from .swap import Change, Layer, Slot

PAUSED: tuple[State, str] = ("live", "paused: stock's code runs")
"""The status of a patch that is paused. One that is lost meanwhile has another, and stays off."""


@dataclass(eq=False)
class Pause:
    """What one caller wants.

    Attributes:
        patches: ids of those that are to pause.
        regardless: whether also while they hold work.
        is_wanted: it has not ended.
        is_shown: the board has agreed with it.
    """

    patches: frozenset[str]
    regardless: bool
    is_wanted: bool = True
    is_shown: bool = False


class Pausing:
    """The pauses of a process; each step may be repeated."""

    def __init__(self, roster: Roster, notices: Notices) -> None:
        """Pause nothing yet."""
        self._roster = roster
        self._notices = notices
        self._pauses: list[Pause] = []
        self._off: dict[Member, str] = {}  # what is paused, with the reason that it had
        self._whole: dict[Slot, tuple[Layer, ...]] = {}  # what is shown without a pause
        self._made: dict[tuple[Slot, tuple[Layer, ...]], Change] = {}

    def __bool__(self) -> bool:
        """Whether something is paused, or is to be."""
        return bool(self._off or any(each.is_wanted for each in self._pauses))

    def is_paused(self, member: Member) -> bool:
        """Whether stock's code is shown in place of a patch."""
        return member in self._off

    def begin(self, pause: Pause) -> None:
        """Have the board agree with one more pause, if that is safe now."""
        if pause.is_wanted and not pause.is_shown:
            self._pauses.append(pause)
            pause.is_shown = self.agree()
            if not pause.is_shown:
                self._pauses.remove(pause)

    def agree(self) -> bool:
        """Show what the pauses want, all at once; False where it is not safe now."""
        if not self._off and not self._pauses:
            return True
        for member in [each for each in self._off if each.status != PAUSED]:
            del self._off[member]  # lost meanwhile
            member.slots = {}
        off = self._to_be_off()
        going = [each for each in self._roster.on() if each in off]
        coming = [each for each in self._off if each not in off]
        if (going or coming) and not self._exchange(going, coming):
            return False
        self._pauses = [each for each in self._pauses if each.is_wanted]
        if not self._off:
            self._whole.clear()
        return True

    def waits_for(self, patches: frozenset[str]) -> str:
        """Why patches can't pause now."""
        lines = {each.patch.id: each.waits_for() for each in self._roster.on()}
        why = next((f"{id}: until {lines[id]}" for id in patches if lines.get(id)), "")
        return why or "a thread is in a call of them"

    def _to_be_off(self) -> set[Member]:
        """The live patches that a pause wants off, with those that need them."""
        live = [each for each in self._roster if each.state == "live" and each.end is None]
        wanted = {patch for each in self._pauses if each.is_wanted for patch in each.patches}
        return set(with_dependents([each for each in live if each.patch.id in wanted], live))

    def _exchange(self, going: list[Member], coming: list[Member]) -> bool:
        roster = self._roster
        regardless = any(each.regardless for each in self._pauses)  # of one that ends too
        slots = list(dict.fromkeys(s for each in (*going, *coming) for s in each.slots.values()))
        shown = {each.patch.id for each in (*roster.on(), *coming)}
        shown -= {each.patch.id for each in going}
        changes = [self._change(slot, shown) for slot in slots]
        codes = [code for slot in slots for code in slot.inert_codes()]
        codes += [code for each in coming for s in each.slots.values() for code in s.codes()]
        concerned = [] if regardless else dict.fromkeys([*going, *roster.on_at(slots)])
        if any(each.waits_for() for each in concerned) or stacks.runs_here(codes):
            return False
        for change in changes:
            if change.layers:
                change.slot.place()
        is_shown = roster.show(changes, frozenset(shown), codes, concerned)
        roster.settle(slots)
        if is_shown:
            for slot in slots:
                slot.forget_results()
            for member in coming:
                self._notices.set_status(member, "live", self._off.pop(member))
            for member in going:
                self._off[member] = member.status[1]
                self._notices.set_status(member, *PAUSED)
        return is_shown

    def _change(self, slot: Slot, shown: set[str]) -> Change:
        """What a slot shows of these patches: the same objects each time."""
        if slot not in self._whole:
            now = slot.shown
            self._whole[slot] = now.layers
            for number in range(len(now.layers) + 1):
                below = Change(slot, now.layers[:number], now.values[:number])
                self._made[slot, below.layers] = below
        layers = tuple(layer for layer in self._whole[slot] if layer.patch in shown)
        if (slot, layers) not in self._made:
            self._made[slot, layers] = slot.made_of(layers)
        return self._made[slot, layers]
