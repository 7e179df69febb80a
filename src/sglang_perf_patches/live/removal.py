"""Removing patches completely, and only when that is safe.

A patch that is marked for removal has an `end`. It stays on while a thread is inside it or while it
holds work (`model.patching.Patching.drain`). So do the patches that require it and those that share
a slot with it. Each check tries once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ..model.state import State
from .patch_runtime import WORKING, Notices, PatchRuntime, Registry, why_it_stays, with_dependents

_RULED = frozenset({"gated", "not needed"})
"""States that a ruling gives (`model.ruling`). They are no fault, so no warning is logged."""


@dataclass(eq=False)
class Removal:
    """Removes patches; each step is idempotent, so it may be repeated after an interruption.

    Attributes:
        has_more: whether a patch was marked since the last `go_on`.
    """

    _registry: Registry
    _notices: Notices
    has_more: bool = False

    def lose(self, member: PatchRuntime, state: State, reason: str) -> None:
        """End a patch that is not on; mark one that is on, for `go_on` to remove."""
        if self._registry.is_on(member):
            self.has_more = self.has_more or member.end is None
            member.end = member.end or (state, reason)
        else:
            self._end({member: (state, reason)})

    def revive(self, member: PatchRuntime) -> None:
        """Make a patch that was not needed wait again."""
        self._notices.set_status(member, "pending", "")

    def end_all(self, state: State, reason: str) -> None:
        """End every patch with this state; those that are on are removed by the next `go_on`."""
        for member in self._registry:
            if self._registry.is_on(member):
                member.end = (state, reason)
            elif member.end is None and member.state in WORKING:
                member.forget()
                self._notices.set_status(member, state, reason)

    def go_on(self) -> None:
        """Remove all marked patches, each group in one swap; busy groups stay for the next call."""
        self.has_more = False
        leaving = [member for member in self._registry if member.end is not None]
        for group in _groups(with_dependents(leaving, self._registry.on())):
            if self._take_off(group):
                self._end({each: each.end for each in group if each.end is not None})
                continue
            for member in group:
                if member.end is not None:
                    state, reason = member.end
                    why = reason and f" ({state}: {reason})"
                    waits = f"to be removed{why}: waits until {why_it_stays(group)}"
                    self._notices.set_status(member, "live", waits)

    def waits_for(self) -> str:
        """``ID until REASON`` for each marked patch; "" if none is marked."""
        leaving = [member for member in self._registry if member.end is not None]
        groups = _groups(with_dependents(leaving, self._registry.on()))
        lines = {member.patch.id: why_it_stays(group) for group in groups for member in group}
        return "; ".join(f"{each.patch.id} until {lines[each.patch.id]}" for each in leaving)

    def _take_off(self, going: Collection[PatchRuntime]) -> bool:
        """Remove patches from the dispatch table; False if that is not safe now."""
        registry = self._registry
        slots = [slot for each in going for slot in each.slots.values()]
        if not registry.show([each for each in registry.on() if each not in going]):
            return False
        for slot in slots:
            slot.forget_results()
        return True

    def _end(self, ends: Mapping[PatchRuntime, tuple[State, str]]) -> None:
        """Set the final state of patches that are off, and end the patches that require them."""
        for member, (state, reason) in ends.items():
            member.forget()
            member.end = None
            self._notices.set_status(member, state, reason)
            if state not in _RULED | {"off"}:
                self._notices.complain(member)
        for member, (state, reason) in ends.items():
            for other in self._registry.working():
                if member.patch.id in other.patch.requires:
                    is_ruled = state in _RULED
                    why = f": {reason}" if is_ruled else f", which is {state}"
                    so: State = state if is_ruled else "failed"
                    self.lose(other, so, f"it needs {member.patch.id}{why}")


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
