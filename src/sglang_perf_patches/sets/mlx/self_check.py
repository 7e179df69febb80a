"""Which kinds of work a patch may do on an MLX device on which it is untested.

The patch does the first work of each kind next to stock's code, and compares.

| work of a kind | who serves it |
| --- | --- |
| being tried | stock; the patch computes it too |
| passed | the patch |
| tried as often as it may be, and not passed | stock; the patch's state says so |
| any, after some work was different | stock |
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable

from ...model.patching import Patching

logger = logging.getLogger(__name__)


class SelfCheck:
    """The verdicts of one patch.

    A kind passes once credited `needed` times, and may be tried `tries` times. `until` says how
    long stock's code serves a kind that ran out of tries.
    """

    def __init__(
        self, patch: str, patching: Patching, *, needed: int, tries: int, until: str
    ) -> None:
        self._patch, self._gate, self._ran = patch, patching.gate, patching.ran
        self._needed, self._tries, self._until = needed, tries, until
        self.credits: Counter[Hashable] = Counter()  # how often each kind was credited
        self.tried: Counter[Hashable] = Counter()  # and how often it was tried
        self._left: list[Hashable] = []  # kinds that ran out of tries
        self.is_over = False  # some work was different

    def has_passed(self, kind: Hashable) -> bool:
        """Whether the patch may serve a kind."""
        return not self.is_over and self.credits[kind] >= self._needed

    def may_try(self, kind: Hashable) -> bool:
        """Whether a kind is to be tried, and count that as a try; when they run out, say so."""
        if self.is_over or self.has_passed(kind):
            return False
        if self.tried[kind] < self._tries:
            self.tried[kind] += 1
            return True
        if kind not in self._left:
            self._left.append(kind)
            logger.warning("%s: %s", self._patch, self._note([kind]))
            self._ran.note = self._note(self._left)
        return False

    def doubt(self, kind: Hashable) -> None:
        """A kind that has passed needs one more credit before the patch may serve it again."""
        self.credits[kind] = self._needed - 1
        self.tried[kind] = 0

    def credit(self, kind: Hashable) -> None:
        """Some work of a kind was equal."""
        self.credits[kind] += 1
        if self.has_passed(kind) and kind in self._left:
            self._left.remove(kind)
            self._ran.note = self._note(self._left)

    def _note(self, kinds: list[Hashable]) -> str:
        if not kinds:
            return ""
        more = f" and {len(kinds) - 1} other kinds" if kinds[1:] else ""
        runs = f"stock's code runs for {kinds[0]}{more} until {self._until}"
        return f"{runs}: {self._tries} tries were too few"

    def fail(self, reason: str) -> None:
        """Some work was different: stock's code runs from now on."""
        self.is_over = True
        logger.warning("%s runs stock's code for everything: %s", self._patch, reason)
        self._gate(reason)
