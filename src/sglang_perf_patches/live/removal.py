"""Taking patches off: completely, together with those that need them, and only when that is safe.

A patch that is to be taken off has an `end`. It stays on while a thread is in a call of it, or
while it holds work (`model.patching.Patching.drain`). Every look tries again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..model.state import State
from . import stacks
from .member import WAITING, WORKING, Member
from .notices import Notices
from .roster import Roster, with_dependents

_RULED = frozenset({"gated", "not needed"})
"""States that are no fault of a patch."""


@dataclass(eq=False)
class Removal:
    """Takes patches off; each step may be repeated after an interruption."""

    _roster: Roster
    _notices: Notices

    def lose(self, member: Member, state: State, reason: str) -> None:
        """Take a patch off for good and log it; patches that need it are taken off too."""
        if self._roster.is_on(member):
            member.end = member.end or (state, reason)
            self.go_on()
        else:
            self._end({member: (state, reason)})

    def revive(self, member: Member) -> None:
        """Let a patch wait again that turned out to be needed."""
        self._notices.set_status(member, "pending", "")

    def end_all(self, state: State, reason: str, *, whatever: bool) -> None:
        """Have every patch end so; to be taken off by the next `go_on`.

        Args:
            state: that it is to have.
            reason: why.
            whatever: whether also where it was to end in another way.
        """
        for member in self._roster:
            if self._roster.is_on(member):
                if whatever or member.end is None:
                    member.end = (state, reason)
            elif member.end is None and member.state in WAITING | WORKING:
                self._notices.set_status(member, state, reason)

    def go_on(self) -> None:
        """Take off what is to be, together where that is possible, else what can be."""
        leaving = self._roster.leaving()
        if not leaving or (len(leaving) > 1 and self._take_off(leaving)):
            return
        for member in reversed(leaving):
            if member.end is not None and not self._take_off([member]):
                state, reason = member.end
                why = reason and f" ({state}: {reason})"
                waits = f"to be taken off{why}: waits until {_why_it_stays(member)}"
                self._notices.set_status(member, "live", waits)

    def waits_for(self) -> str:
        """What must end before the patches that are to be taken off are off."""
        lines = {member.patch.id: _why_it_stays(member) for member in self._roster.leaving()}
        return "; ".join(f"{patch} until {why}" for patch, why in lines.items())

    def _take_off(self, leaving: list[Member]) -> bool:
        """Take patches off, with those that need them, if that is safe now."""
        roster = self._roster
        together = with_dependents(leaving, roster.on())
        going = [member for member in roster.on() if member in together]
        # Those of a patch too that an interruption left between the board's change and this.
        of = dict.fromkeys([*going, *leaving])
        patches = frozenset(member.patch.id for member in of)
        slots = list(dict.fromkeys(slot for each in of for slot in each.slots.values()))
        changes = [slot.without(patches) for slot in slots]
        if going:
            codes = [code for slot in slots for code in slot.inert_codes()]
            concerned = dict.fromkeys([*going, *roster.on_at(slots)])
            if any(each.waits_for() for each in concerned) or stacks.runs_here(codes):
                return False
            if not roster.show(changes, roster.board.table.patches - patches, codes, concerned):
                return False
        roster.settle(slots)
        for slot in slots:
            slot.forget_results()
        for member in of:
            member.slots = {}
        # Also the ends of those that went along because they need one of these.
        self._end({each: each.end for each in of if each.end is not None})
        return True

    def _end(self, ends: Mapping[Member, tuple[State, str]]) -> None:
        """Note that patches are off for good, and end those that need them."""
        for member, (state, reason) in ends.items():
            member.end = None
            self._notices.set_status(member, state, reason)
            if state not in _RULED | {"off"}:
                self._notices.complain(member)
        for member, (state, reason) in ends.items():
            for other in self._roster.working():
                if member.patch.id in other.patch.requires:
                    is_ruled = state in _RULED
                    why = f": {reason}" if is_ruled else f", which is {state}"
                    so: State = state if is_ruled else "failed"
                    self.lose(other, so, f"it needs {member.patch.id}{why}")


def _why_it_stays(member: Member) -> str:
    return member.waits_for() or "no thread is in a call of it"
