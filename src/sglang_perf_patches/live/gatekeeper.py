"""Keeping patches off servers with features that they were not proven with.

It asks when a patch is to go live, after each publication of the server's arguments, and at each
look, as some are resolved later. So no patch asks by itself, and none pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..model.feature import Features, unproven
from .board import Board
from .imports import Imports
from .member import Member
from .published import MODULES, Watch, published
from .removal import Removal
from .roster import Roster


class Gatekeeper:
    """Gates patches, for good, in set-ups that they were not proven with."""

    def __init__(
        self,
        features: Features,
        board: Board,
        roster: Roster,
        removal: Removal,
        on_publication: Callable[[], None],
    ) -> None:
        """Gate none yet; `on_publication` is to have `act` called."""
        self._features = features
        self._roster = roster
        self._removal = removal
        self._watch = Watch(board, on_publication)

    def watch(self, imports: Imports) -> None:
        """Wait for what publishes, and see publications from then on; may be repeated."""
        if any(member.patch.proven_with is not None for member in self._roster.working()):
            imports.wait_for(MODULES)
            self._watch.begin(imports)

    def leave(self) -> None:
        """See no more publications; memory is to be settled after that."""
        self._watch.leave()

    def act(self) -> None:
        """Have each patch end that was not proven with what the server has on.

        While it is being published, in whatever thread, nothing can be said: `act` is called then.
        """
        if self._watch.publishing:
            return
        on: Mapping[str, str] | None = None
        for member in self._roster.working():
            if member.patch.proven_with is None or member.end is not None:
                continue
            if member.state == "gated" and not self._roster.is_on(member):
                continue
            on = self._features.of(published()) if on is None else on
            reason = self._reason(member, on)
            if reason is not None:
                self._removal.lose(member, "gated", reason)

    def reason(self, member: Member) -> str | None:
        """Why a patch may not go live here; None if it may."""
        if member.patch.proven_with is None or self._watch.publishing:
            return None
        return self._reason(member, self._features.of(published()))

    def _reason(self, member: Member, on: Mapping[str, str]) -> str | None:
        for patch in (
            member.patch,
            *(self._roster[needed].patch for needed in self._acting(member)),
        ):
            reason = unproven(patch.proven_with, on) if patch.proven_with is not None else None
            if reason is not None:
                return reason if patch is member.patch else f"it needs {patch.id}: {reason}"
        return None

    def _acting(self, member: Member) -> list[str]:
        """The patches that it needs and that upstream does not have built in."""
        needed = {name: self._roster[name].verdict for name in member.patch.requires}
        return [name for name, verdict in needed.items() if verdict and verdict.word == "applies"]
