"""Keeping the record of this process up to date, from a thread of its own.

Code on a hot path only sets a flag in memory; the thread looks at it once a second. A forked child
gets no thread and no record by the fork alone, because most such children are about to become
another program: its keeper starts when a patch changes there, when it activates, or when
multiprocessing begins to work in it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import metrics, procfs, ready, records
from .records import RecordError

if TYPE_CHECKING:
    from pathlib import Path

    from ..model.state import Report

logger = logging.getLogger("sglang_perf_patches")

_TICK_S = 1.0


def keep(
    report: Callable[[], Report | None], look_again: Callable[[], object] | None = None
) -> None:
    """Write this process's record now and whenever it changes, until `drop`.

    Args:
        report: what happened in this process so far.
        look_again: called once a second without any lock, for what else is to be looked at.
    """
    drop()
    keeper = _Keeper(report, look_again)
    _keepers.append(keeper)
    keeper.begin()


def changed() -> None:
    """Notify the keeper of a change; nothing is read or written here."""
    for keeper in _keepers:
        keeper.begin(at_once=False)
        keeper.wake.set()


def resume() -> None:
    """Start a record in this process too, if it was forked from one that has a record."""
    for keeper in _keepers:
        keeper.begin()


def drop() -> None:
    """Remove this process's record and stop keeping it."""
    while _keepers:
        _keepers.pop().stop()


class _Keeper:
    """Keeps the record of one process."""

    def __init__(
        self, report: Callable[[], Report | None], look_again: Callable[[], object] | None
    ) -> None:
        self.report = report
        self.look_again = look_again or (lambda: None)
        self.has_warned = False
        self.is_known_to_multiprocessing = False
        self.forget()

    def forget(self) -> None:
        """Be new in this process: what a forked child does, and all that it does."""
        self.over = False
        self.has_begun = False
        self.has_forked = False
        self.pid = os.getpid()
        self.wake = threading.Event()
        self.writing = threading.RLock()
        self.path: Path | None = None
        self.name = self.server = self.image = ""
        self.written: dict[str, Any] = {}
        self.announcement = ready.Announcement()
        self.exporter = metrics.Exporter()

    def begin(self, *, at_once: bool = True) -> None:
        """Start the thread, once in a process.

        Args:
            at_once: whether the first record is written here, and not by the thread.
        """
        if self.has_begun or self.over:
            return
        self.has_begun = True
        self.started = time.time()
        try:
            folder = records.folder_to_write()
            self.image = procfs.image(self.pid)
            self.name = records.name_of(self.pid)
            self.server = records.topmost(folder, self.pid)
            self.path = folder / f"{self.name}.json"
        except (OSError, RecordError) as error:
            self.warn(error)
        if at_once:
            self.try_to_write()
        name = "sglang-perf-patches-record"
        threading.Thread(target=self.run, name=name, daemon=True).start()

    def run(self) -> None:
        while not self.over:
            self.wake.wait(_TICK_S)
            self.wake.clear()
            if self.over:
                return
            self.look_again()
            data = self.try_to_write()
            if data is not None:
                self.announce(data)
                self.exporter.export(data)
            if self.has_forked and self.path is not None:
                records.sweep(self.path.parent)  # of children that ended without cleanup
            time.sleep(_TICK_S / 4)  # changes come in bursts

    def try_to_write(self) -> dict[str, Any] | None:
        """Bring the record up to date, and back where a cleaner of temporary files took it.

        Returns:
            what the record says; None if nothing is activated any more.
        """
        report = self.report()
        if report is None:
            return None
        data = {
            "pid": self.pid,
            "server": self.server,
            "started": round(self.started, 3),
            "role": _role(),
            "sglang": report.sglang,
            "selection": report.selection,
            "image": self.image,
            "patches": [asdict(state) for state in report.patches],
        }
        with self.writing:
            if self.over or self.path is None:
                return data
            if data == self.written and self.path.exists():
                return data
            try:
                records.write(self.path, data)
                self.written = data
            except (OSError, RecordError) as error:
                self.warn(error)
        return data

    def announce(self, data: dict[str, Any]) -> None:
        """Say once for all processes of a server, in the topmost, what is live there."""
        if self.server not in {"", self.name} or self.announcement.is_made:
            return
        others = records.of_server(self.path.parent, self.server) if self.path else []
        self.announcement.look([data, *(other for other in others if other["pid"] != self.pid)])

    def warn(self, error: Exception) -> None:
        """Say once in a process that `status` will not show it."""
        if not self.has_warned:
            self.has_warned = True
            logger.warning(
                "sglang-perf-patches: `status` will not show process %d: %s", self.pid, error
            )

    def tell_multiprocessing(self) -> None:
        """Begin in the children that multiprocessing forks to work, and end with them."""
        util = sys.modules.get("multiprocessing.util")
        if util is None or self.is_known_to_multiprocessing:
            return
        self.is_known_to_multiprocessing = True

        def begin_and_end(keeper: _Keeper) -> None:
            keeper.begin()
            util.Finalize(None, keeper.stop, exitpriority=0)  # a multiprocessing child skips atexit

        util.register_after_fork(self, begin_and_end)

    def stop(self) -> None:
        self.over = True
        self.wake.set()
        if self.path is not None and self.pid == os.getpid():
            with self.writing, contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
            if self.has_forked:
                records.sweep(self.path.parent)


_keepers: list[_Keeper] = []  # at most one; a container, so that nothing rebinds it


def _before_fork() -> None:
    for keeper in _keepers:
        keeper.has_forked = True
        keeper.tell_multiprocessing()


def _after_fork_in_child() -> None:
    for keeper in _keepers:
        keeper.forget()


atexit.register(drop)
os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)


def _role() -> str:
    """The role of this process as its start shows it; sglang's own titles say more later."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    name = spec.name if spec else os.path.basename(getattr(main, "__file__", "") or "python")
    if "multiprocessing" in sys.modules:
        process = sys.modules["multiprocessing"].current_process()
        if process.name != "MainProcess":
            return str(process.name)
    # `sglang serve` is the console script `sglang`, or the module behind it.
    serves = sys.argv[1:2] == ["serve"] and name.split(".")[0] == "sglang"
    return "launcher" if serves or name.endswith(("launch_server", "serve")) else str(name)
