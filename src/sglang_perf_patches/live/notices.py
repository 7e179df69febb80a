"""What is said of the patches: to observers at once, in the log when the executor is done."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection

from ..model.state import State
from .member import Member

logger = logging.getLogger("sglang_perf_patches")


class Notices:
    """Says each thing once, and no fault of an observer's reaches the patches."""

    def __init__(
        self,
        demanded: Collection[str],
        on_change: Callable[[], None],
        on_loss: Callable[[str], None],
    ) -> None:
        """Have nothing to say yet.

        Args:
            demanded: ids whose loss is more than a warning.
            on_change: called when the state of a patch changed.
            on_loss: called by `speak` with the line to show, where a demanded one is lost.
        """
        self._demanded = demanded
        self._on_change = on_change
        self._on_loss = on_loss
        self._messages: deque[tuple[int, str]] = deque()
        self._loss = ""

    def set_status(self, member: Member, state: State, reason: str) -> None:
        """Note what became of a patch."""
        if member.status != (state, reason):
            member.status = (state, reason)
            if state == "gated" and member.patch.id in self._demanded:
                self.complain(member)
            self.tell(self._on_change)

    def tell(self, observers: Callable[[], None]) -> None:
        """Call observers."""
        try:
            observers()
        except Exception:
            logger.debug("an observer failed", exc_info=True)

    def complain(self, member: Member) -> None:
        """Say that a patch is lost, and why."""
        state, reason = member.end or member.status
        line = f"sglang-perf-patches: {member.patch.id} is {state}: {reason}"
        if member.patch.id in self._demanded:
            self._loss = self._loss or line
        else:
            self._messages.append((logging.WARNING, line))

    def lose_all(self, reason: str, lost: Collection[Member]) -> None:
        """Say that every patch is removed; of those that are demanded too."""
        for member in lost:
            if member.patch.id in self._demanded:
                self.complain(member)
        line = f"sglang-perf-patches: every patch is removed: {reason}"
        self._messages.append((logging.ERROR, line))

    def speak(self) -> None:
        """Log what is due, and report a loss; outside of the executor."""
        if self._loss:
            self._on_loss(self._loss)
        while self._messages:
            try:
                level, line = self._messages.popleft()
            except IndexError:  # another thread took it
                return
            logger.log(level, line)
