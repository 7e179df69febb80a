"""Whether the names that a patch touches and relies on still hold what they should."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from ..judge.source import Definition
from ..model.patch import module_of
from ..model.patching import MISSING
from .board import Board
from .compiled import Compiled
from .identity import Foreign, check, check_relatives, check_values, glimpse, owner_of, raw
from .imports import Imports
from .member import Member
from .swap import Slot
from .wrappers import describe


@dataclass(eq=False)
class Verifier:
    """Looks at memory, and knows the slots of this process. It changes nothing.

    Attributes:
        compiled: tells what code is stock's.
    """

    _board: Board
    _imports: Imports
    compiled: Compiled

    def verify(self, member: Member) -> list[str]:
        """Check every definition of a patch in memory.

        Returns:
            the foreign wrappers around its targets.

        Raises:
            Foreign: other code replaced one, or already added what the patch would add.
        """
        variant = member.variant
        wrappers: list[str] = []
        for definition in member.each_definition():
            reference = definition.reference
            if not self._imports.is_ready(module_of(reference)):
                continue  # it is verified when its import ends
            check_values(definition, partial(self._is_ours, member))
            slot = self._placed(member, reference)
            if slot is not None:
                wrappers += self._require_ours(reference, slot, definition)
                continue
            stock = check(definition, self.compiled)
            if stock is not None and reference in variant.targets:
                wrappers += stock.wrappers
        verified = {definition.reference for definition in member.each_definition()}
        for reference in variant.adds:
            slot = self._placed(member, reference)
            if slot is not None:
                wrappers += self._require_ours(reference, slot)
                continue
            owner, name = owner_of(reference)
            if raw(owner, name) is not MISSING:
                raise Foreign(f"{reference} exists already: {describe(raw(owner, name))}")
            check_relatives(reference, verified)
        return wrappers

    def slot(self, member: Member, reference: str) -> Slot:
        """The slot of a reference: the one that is there, or a new one.

        Raises:
            Foreign: what stands there is not stock's.
            TypeError: its code can't be exchanged.
        """
        owner, name = owner_of(reference)
        slot: Slot | None = self._board.slots.get((id(owner), name))
        if slot is not None and (slot.layers or slot.stands()):
            return slot
        definition = member.definitions.get(reference)
        stock = check(definition, self.compiled) if definition else None
        held, inside = raw(owner, name), None
        if stock and (stock.wrappers or isinstance(owner, ModuleType)):
            held = inside = stock.function
        # What is inert is made once: who has kept it calls the same one later.
        if slot is not None and slot.is_for(held, inside):
            return slot
        return Slot(self._board, owner, name, held, inside)

    def glimpse(self, member: Member) -> list[Any]:
        """Objects that stay the same ones while what a patch touches and relies on does."""
        variant = member.variant
        read = dict.fromkeys(name for each in member.each_definition() for name in each.values)
        members = [each.reference for own in member.definitions.values() for each in own.members]
        return [
            *glimpse((*variant.targets, *variant.adds, *variant.depends, *members, *read)),
            *(getattr(slot.inside, "__code__", None) for slot in member.slots.values()),
        ]

    def _is_ours(self, member: Member, reference: str) -> bool:
        return self._placed(member, reference) is not None

    def _placed(self, member: Member, reference: str) -> Slot | None:
        """The slot that a reference leads to, where something of ours stands there.

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
        slot: Slot | None = self._board.slots.get((id(owner), name))
        if slot is None:
            return None
        return slot if slot.layers or slot.stands() else None

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
            again = definition is not None and check(definition, self.compiled) is not None
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
