"""Showing stock's and ours by turns in a process in which patches are live, for measurements.

``deactivate()`` would wait until nothing that a patch holds is used, and a patch that is off for
good does not come back. Here the board alone changes: whoever asks keeps the patched calls away.
"""

from sglang_perf_patches.live import engine


class Sides:
    """What the process shows now, and what it would show without some patches."""

    def __init__(self):
        """Take the patches that are live at this moment."""
        self._board = engine._board
        self._all = self._board.table
        self._slots = [slot for slot in self._board.slots.values() if slot.layers]
        self.patches = frozenset(self._all.patches)

    def show(self, without=None):
        """Show all but some patches; without None: all but all."""
        off = self.patches if without is None else frozenset(without)
        self._have(self._all)
        if not off:
            return
        changes = [slot.without(off) for slot in self._slots]
        table = self._all.replaced({each.slot: each for each in changes}, self.patches - off)
        for change in changes:
            vars(table).update(change.slot.functions(change))
        self._have(table)

    def _have(self, table):
        for slot in self._slots:
            if table.shown[slot].layers:
                slot.place()
        self._board.now = table
        for slot in self._slots:
            slot.settle()
