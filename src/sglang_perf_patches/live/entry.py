"""Putting patches live: completely, once their modules are imported, and only on known code.

A patch waits until the last of its modules has been imported. Every definition that it changes or
relies on is verified in memory. Its install function says what to change, and the new objects are
made. They are put in place inert, and the board shows all of them at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from ..model.patching import Gated
from .executor import Executor
from .gatekeeper import Gatekeeper
from .identity import Foreign
from .imports import Imports
from .member import SERVING, WAITING, Member
from .notices import Notices
from .patching import Patching
from .removal import Removal
from .roster import Roster
from .swap import Change, Layer
from .verifier import Verifier

logger = logging.getLogger("sglang_perf_patches")


@dataclass(eq=False)
class Entry:
    """Puts patches live; each step may be repeated after an interruption.

    Attributes:
        is_importing: code of ours is being imported, by the thread that is at work.
    """

    _roster: Roster
    _imports: Imports
    _verifier: Verifier
    _removal: Removal
    _notices: Notices
    _gatekeeper: Gatekeeper
    _executor: Executor
    is_importing: bool = False

    def advance(self) -> None:
        """Put live what can be by now."""
        before = None
        while not self._roster.over and before != (before := [each.state for each in self._roster]):
            # Repeat after a change: if a patch fails, one that it superseded may replace it.
            for member in self._roster:
                if not self._roster.over and member.state in WAITING and member.end is None:
                    self._attempt(member)

    def _attempt(self, member: Member) -> None:
        """Advance a waiting patch as far as possible now."""
        if self._roster.is_on(member):  # the thread that put it live did not come to say so
            self._notices.set_status(member, "live", "")
            return
        for better in member.patch.superseded_by:
            if self._roster[better].state in {"live", "pending"}:
                reason = f"{better} does its work and more"
                self._notices.set_status(member, "superseded", reason)
                return
        missing = [name for name in member.variant.modules() if not self._imports.is_ready(name)]
        if missing:
            self._notices.set_status(member, "pending", f"{missing[0]} is not imported yet")
            return
        for needed in member.patch.requires:
            state = self._roster[needed].state
            if state not in SERVING:
                self._removal.lose(member, "failed", f"it needs {needed}, which is {state}")
                return
        ruled = self._gatekeeper.ruling(member)
        if ruled is not None:
            self._notices.set_status(member, *ruled)
            return
        try:
            wrappers, changes = self._prepare(member)
        except Gated as gate:
            self._notices.set_status(member, "gated", str(gate))
        except Foreign as foreign:
            self._removal.lose(member, "conflict", str(foreign))
        except Exception as error:
            self.is_importing = False
            logger.debug("%s failed", member.patch.id, exc_info=True)
            if len(self._executor) > 1:
                return  # an import has ended meanwhile, which may be what was missing
            self._removal.lose(member, "failed", f"{type(error).__name__}: {error}")
        else:
            if not self._roster.over:
                self._go_live(member, changes, wrappers)

    def _prepare(self, member: Member) -> tuple[list[str], dict[str, Change]]:
        """Import and run install code; what is seen stays as it is.

        Returns:
            foreign wrappers, and what each slot is to show, by the reference that it is for.

        Raises:
            Foreign: stock's code is not what it was.
            Gated: the patch does not support the situation of this process.
            Exception: install code failed.
        """
        self.is_importing = True
        install = member.variant.load()
        self.is_importing = False
        wrappers = self._verifier.verify(member)
        member.gate = ""
        patching = Patching(
            member.patch.id,
            member.variant,
            (member.verdict.release if member.verdict else None) or "",
            member.ran,
            partial(self._close, member),
            lambda: member.end is not None,
        )
        install(patching)
        changes = self._changes(member, patching)
        member.drains = tuple(patching.drains)
        return wrappers, changes

    def _changes(self, member: Member, patching: Patching) -> dict[str, Change]:
        """What each slot is to show, by the reference that it is for.

        Raises:
            RuntimeError: a declared definition would stay as it is.
        """
        variant = member.variant
        layers: dict[str, list[Layer]] = {}
        for reference, make in patching.changes:
            layer = Layer(member.order, member.patch.id, make)
            layers.setdefault(reference, []).append(layer)
        unchanged = set(variant.targets + variant.adds) - set(layers)
        if unchanged:
            raise RuntimeError(f"its install function left {min(unchanged)} unchanged")
        return {
            reference: self._verifier.slot(member, reference).with_layers(of_reference)
            for reference, of_reference in layers.items()
        }

    def _go_live(self, member: Member, changes: Mapping[str, Change], wrappers: list[str]) -> None:
        """Change everything that a patch wants changed, or nothing."""
        roster = self._roster
        member.slots = {reference: change.slot for reference, change in changes.items()}
        slots = member.slots.values()
        roster.board.slots |= {(id(slot.owner), slot.name): slot for slot in slots}
        others = [other for other in roster.on_at(slots) if other is not member]
        try:
            for slot in slots:
                slot.place()
            codes = [code for slot in slots for code in slot.codes()]
            patches = roster.board.table.patches | {member.patch.id}
            is_shown = roster.show(changes.values(), patches, codes, others)
        except Exception as error:
            if not roster.is_on(member):
                roster.settle(slots)
                member.slots = {}
            self._removal.lose(member, "failed", f"{type(error).__name__}: {error}")
            return
        roster.settle(slots)
        if not is_shown:
            member.slots = {}
            reason = "a thread is in a call that it would change"
            self._notices.set_status(member, "pending", reason)
        elif member.gate:
            self._notices.set_status(member, "gated", member.gate)
        else:
            self._notices.set_status(member, "live", around(wrappers))
        member.seen = self._verifier.glimpse(member)

    def _close(self, member: Member, reason: str) -> None:
        """A patch reports that it now runs only stock's code. On a hot path: nothing waits."""
        member.gate = reason
        if member.state == "live":
            self._notices.set_status(member, "gated", reason)


def around(wrappers: Iterable[str]) -> str:
    """The reason of a patch that is live, with foreign wrappers around it."""
    text = "; ".join(wrappers)
    return f"wrapped by {text}" if text else ""
