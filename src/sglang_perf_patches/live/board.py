"""One table for all that this process shows in stock's places, exchanged in one step.

What stands in a stock place is *inert*: it calls what the table shows at that moment (see
`trampoline`), stock's own function at first. So every place of a patch changes with one assignment,
``Board.now = table``, and a thread sees all of a patch or nothing.

A call that has begun goes on with what it began with. So the table is exchanged only while no
thread is in a call that the exchange concerns. A *gate* brings that moment about: for some
milliseconds, calls wait that begin outside of any such call; calls inside of one go on.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import CodeType
from typing import Any

from . import stacks

_GATE_S = 0.05
_STEP_S = 0.0005
# How long a call waits for an exchange that has been decided: it takes one assignment.
_DECIDED_S = 1.0


class Table:
    """What each place shows: a function, as an attribute, by the key of its place.

    Attributes:
        shown: what is noted of each place, by place.
        patches: ids of the patches that it shows.
        before: what was shown before the gate was closed, where this is a closed gate's.
    """

    def __init__(self) -> None:
        """Show nothing."""
        self.shown: dict[Any, Any] = {}
        self.patches: frozenset[str] = frozenset()
        self.before: Table | None = None

    def copy(self) -> Table:
        """A table that shows the same."""
        table = Table()
        table.__dict__.update(self.__dict__)
        table.shown = dict(self.shown)
        return table

    def replaced(self, shown: Mapping[Any, Any], patches: frozenset[str]) -> Table:
        """A table with other notes of some places, for these patches."""
        table = self.copy()
        table.shown |= shown
        table.patches = patches
        return table


class Board:
    """The table of this process.

    Attributes:
        now: what is shown.
        slots: every place in which something of ours stands or stood, by owner and name.
    """

    def __init__(self) -> None:
        """Show nothing."""
        self.now: Any = Table()
        self.slots: dict[tuple[int, str], Any] = {}

    @property
    def table(self) -> Table:
        """What is shown while no gate is closed."""
        now: Table = self.now
        return now.before or now

    def add(self, key: str, function: Callable[..., Any]) -> None:
        """Have a new place, which nothing calls yet."""
        setattr(self.table, key, function)

    def exchange(
        self,
        table: Table,
        keys: Iterable[str],
        codes: Collection[CodeType],
        is_due: Callable[[], bool],
    ) -> bool:
        """Show another table, at a moment at which no other thread executes one of `codes`.

        The caller answers for its own thread.

        Args:
            table: made from `table`.
            keys: of the places that it changes.
            codes: what a thread executes that is in a call that the exchange concerns.
            is_due: whether it may be done; asked while no thread is in such a call.

        Returns:
            False if there was no such moment, or it is not due: nothing has changed.
        """
        if not codes:
            if not is_due():
                return False
            self.now = table
            return True
        before = self.table
        codes = (*codes, _Entry.__call__.__code__)  # who waited at an earlier gate has not gone on
        gate = _Gate(self, before, codes)
        try:
            if len(sys._current_frames()) > 1:
                self.now = gate.closed(keys)
            while stacks.runs_elsewhere(codes, gate.waiting):
                if time.monotonic() > gate.deadline:
                    return False
                time.sleep(_STEP_S)
            # Asked twice: a walk of other threads' frames may be misled, though hardly twice.
            if stacks.runs_elsewhere(codes, gate.waiting) or not is_due() or not gate.decide():
                return False
            self.now = table
            return True
        finally:
            if self.now is not table:
                self.now = before
            gate.is_over = True


class _Gate:
    """Has calls wait that begin while a table is to be exchanged.

    Attributes:
        waiting: identifiers of the threads that wait.
        deadline: when they go on whatever has become of the exchange, in monotonic seconds.
        is_over: nobody waits any more.
    """

    def __init__(self, board: Board, before: Table, codes: Collection[CodeType]) -> None:
        self.board = board
        self.before = before
        self.codes = codes
        self.waiting: set[int] = set()
        self.deadline = time.monotonic() + _GATE_S
        self.is_over = False
        self._undecided = [True]  # whoever takes it decides whether the exchange takes place

    def closed(self, keys: Iterable[str]) -> Table:
        """The table that has calls wait."""
        table = self.before.copy()
        table.before = self.before
        for key in keys:
            setattr(table, key, _Entry(self, key))
        return table

    def decide(self) -> bool:
        """Take the decision, unless a call has gone on already."""
        return _take(self._undecided)

    def wait(self) -> None:
        """Return when the exchange has been done or given up."""
        thread = threading.get_ident()
        self.waiting.add(thread)
        try:
            while not self.is_over:
                late = time.monotonic() - self.deadline
                if late > 0 and (_take(self._undecided) or late > _DECIDED_S):
                    self.is_over = True
                    return
                time.sleep(_STEP_S)
        finally:
            self.waiting.discard(thread)


class _Entry:
    """What a closed gate shows in a place."""

    def __init__(self, gate: _Gate, key: str) -> None:
        self._gate = gate
        self._key = key
        self._inside = getattr(gate.before, key)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # The frame of the place itself says nothing; those beyond it are of an earlier call.
        if stacks.runs_here(self._gate.codes, beyond=2):
            return self._inside(*args, **kwargs)
        waited: _Gate | None = None
        gate = self._gate
        while gate is not waited:
            gate.wait()
            function, waited = getattr(gate.board.now, self._key), gate
            if isinstance(function, _Entry):  # the next exchange's, or one that nobody opened
                function, gate = function._inside, function._gate
        return function(*args, **kwargs)


def _take(token: list[bool]) -> bool:
    try:
        return token.pop()
    except IndexError:
        return False
