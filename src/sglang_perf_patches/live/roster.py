"""The patches of this process together: which are on, and changing what several show at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from types import CodeType

from ..model.patch import Patch
from .board import Board
from .member import WORKING, Member
from .swap import Change, Slot


class Roster:
    """Every patch there is, in declared order, and what they show.

    Attributes:
        board: what this process shows.
        over: nothing goes live any more.
    """

    def __init__(self, patches: Iterable[Patch], board: Board) -> None:
        """Change nothing yet."""
        self.board = board
        self.over = False
        self._members = {patch.id: Member(patch, order) for order, patch in enumerate(patches)}

    def __iter__(self) -> Iterator[Member]:
        """Each member, in declared order."""
        return iter(self._members.values())

    def __getitem__(self, patch: str) -> Member:
        """The member of a patch, by its id."""
        return self._members[patch]

    def is_on(self, member: Member) -> bool:
        """Whether the board shows a patch, whatever its state says so far."""
        return member.patch.id in self.board.table.patches

    def on(self) -> list[Member]:
        """Those that the board shows."""
        return [member for member in self if self.is_on(member)]

    def working(self) -> list[Member]:
        """Those that are live, or may be."""
        return [member for member in self if member.state in WORKING]

    def leaving(self) -> list[Member]:
        """Those that are to be taken off."""
        return [member for member in self if member.end is not None]

    def on_at(self, slots: Collection[Slot]) -> list[Member]:
        """Those that show something in one of these slots."""
        return [
            member for member in self.on() if any(each in slots for each in member.slots.values())
        ]

    def show(
        self,
        changes: Collection[Change],
        patches: frozenset[str],
        codes: Collection[CodeType],
        holding: Iterable[Member],
    ) -> bool:
        """Have the board show changes, all at once.

        Args:
            changes: what slots are to show.
            patches: ids of all that are on then.
            codes: what a thread executes that is in a call that the changes concern.
            holding: those that must hold no work at that moment.

        Returns:
            False if there was no such moment: nothing has changed.
        """
        table = self.board.table.replaced({each.slot: each for each in changes}, patches)
        keys: list[str] = []
        for change in changes:
            functions = change.slot.functions(change)
            table.__dict__.update(functions)
            keys += functions
        members = list(holding)
        return self.board.exchange(
            table, keys, codes, lambda: not any(member.waits_for() for member in members)
        )

    def settle(self, slots: Iterable[Slot]) -> None:
        """Make memory agree with the board.

        Raises:
            Exception: of the first slot where that failed; the others were settled.
        """
        failed: Exception | None = None
        for slot in slots:
            try:
                slot.settle()
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def is_clear(self) -> bool:
        """Whether nothing of ours is shown, nor left in stock's places."""
        return not self.on() and all(
            slot.layers or slot.is_left() for slot in self.board.slots.values()
        )


def with_dependents(members: Iterable[Member], among: Collection[Member]) -> list[Member]:
    """Some members, and those among others that need any of them, directly or not."""
    together = list(dict.fromkeys(members))
    for member in together:  # which grows
        id = member.patch.id
        together += [each for each in among if id in each.patch.requires and each not in together]
    return together
