"""Which kinds of work a patch may do on an MLX device on which it is untested.

The patch does the first work of each kind next to stock's code, and compares.

| work of a kind | who serves it |
| --- | --- |
| being tried | stock; the patch computes it too |
| passed | the patch |
| tried as often as it may be, and not passed | stock |
| any, after some work was different | stock |
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable

logger = logging.getLogger(__name__)


class SelfCheck:
    """The verdicts of one patch.

    Attributes:
        is_over: some work was different.
    """

    def __init__(
        self, patch: str, gate: Callable[[str], None], *, needed: int = 1, tries: int = 1
    ) -> None:
        """A kind passes once credited `needed` times, and may be tried `tries` times."""
        self._patch, self._gate = patch, gate
        self._needed, self._tries = needed, tries
        self._credits: Counter[Hashable] = Counter()
        self._tried: Counter[Hashable] = Counter()
        self.is_over = False

    def credits(self, kind: Hashable) -> int:
        """How often a kind was credited."""
        return self._credits[kind]

    def has_passed(self, kind: Hashable) -> bool:
        """Whether the patch may serve a kind."""
        return not self.is_over and self._credits[kind] >= self._needed

    def may_try(self, kind: Hashable) -> bool:
        """Whether a kind is to be tried, and count that as a try; at its last one, say so."""
        if self.is_over or self.has_passed(kind):
            return False
        if self._tried[kind] == self._tries:
            self._tried[kind] += 1  # says it once
            logger.warning(
                "%s runs stock's code for %s: %d tries were too few", self._patch, kind, self._tries
            )
        if self._tried[kind] > self._tries:
            return False
        self._tried[kind] += 1
        return True

    def credit(self, kind: Hashable) -> None:
        """Some work of a kind was equal."""
        self._credits[kind] += 1

    def fail(self, reason: str) -> None:
        """Some work was different: stock's code runs from now on."""
        self.is_over = True
        logger.warning("%s runs stock's code for everything: %s", self._patch, reason)
        self._gate(reason)
