"""Keeping patches off servers that do not need them, or with features nobody proved them with.

The rule is `model.ruling`.

It asks when a patch is to go live, after each publication of the server's arguments, and at each
look, as some are resolved later. So no patch asks by itself, and none pays for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..model.feature import Features, Setup
from ..model.ruling import Ruling, ruling
from .board import Board
from .imports import Imports
from .member import Member, Roster
from .published import MODULES, Watch, published
from .removal import Removal


class Gatekeeper:
    """Gates patches, for good, in set-ups that they were not proven with, or need not be in."""

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
        self._had: frozenset[str] = frozenset()
        self._watch = Watch(board, on_publication)

    def watch(self, imports: Imports) -> None:
        """Wait for what publishes, and see publications from then on; may be repeated."""
        if any(self._is_ruled(member) for member in self._roster.working()):
            imports.wait_for(MODULES)
            self._watch.begin(imports)

    def leave(self) -> None:
        """See no more publications; memory is to be settled after that."""
        self._watch.leave()

    def act(self) -> None:
        """Have each patch end that is not needed or not proven on this server.

        A server that turns out to have what a patch is for gets it back.

        While it is being published, in whatever thread, nothing can be said: `act` is called then.
        """
        if self._watch.is_publishing():
            return
        setup: Setup | None = None
        for member in self._roster.working():
            if not self._is_ruled(member) or member.end is not None:
                continue
            if member.state == "gated" and not self._roster.is_on(member):
                continue
            setup = self._setup() if setup is None else setup
            ruled = self._rule(member, setup)
            if member.state == "not needed":
                if ruled is None or ruled[0] != "not needed":
                    self._removal.revive(member)
            elif ruled is not None:
                self._removal.lose(member, *ruled)

    def ruling(self, member: Member) -> Ruling | None:
        """Why a patch may not go live here; None if it may."""
        if not self._is_ruled(member) or self._watch.is_publishing():
            return None
        return self._rule(member, self._setup())

    def _is_ruled(self, member: Member) -> bool:
        has_rule = member.patch.proven_with is not None or bool(member.patch.only_with)
        return has_rule or member.state == "not needed"  # one that it requires is not

    def _setup(self) -> Setup:
        """The server; what it once had it has: a draft's arguments are published in between."""
        setup = self._features.setup(published())
        self._had |= setup.having
        lacking = {use: why for use, why in setup.lacking.items() if use not in self._had}
        return replace(setup, lacking=lacking)

    def _rule(self, member: Member, setup: Setup) -> Ruling | None:
        acting = [self._roster[needed].patch for needed in self._acting(member)]
        return ruling(member.patch, acting, setup)

    def _acting(self, member: Member) -> list[str]:
        """The patches that it needs and that upstream does not have built in."""
        needed = {name: self._roster[name].verdict for name in member.patch.requires}
        return [name for name, verdict in needed.items() if verdict and verdict.word == "applies"]
