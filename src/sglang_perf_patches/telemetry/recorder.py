"""Keeps the record of this process up to date, and its metrics, from a thread of its own.

Patched code only sets a flag in memory; the thread reads it once a second. A forked child gets no
thread and no record at first, because most such children soon exec another program. Its recorder
starts when a patch changes there, when it activates, or when multiprocessing starts work in it.

Nothing here raises, because patches must work whether they are recorded or not. The first failure
is logged; the next tick tries again.

sglang uses the multiprocess mode of prometheus_client: every process of a server with
``--enable-metrics`` writes its metrics to one folder, and whichever process answers ``/metrics``
reads them all. So each process sets its own. The library is used only if sglang has loaded it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from .. import __version__
from ..model.state import Report
from . import procfs, ready, records
from .records import RecordError

logger = logging.getLogger("sglang_perf_patches")
_T = TypeVar("_T")

_TICK_S = 1.0
_END_S = 0.25
"""How long the interpreter's end waits for the thread."""

_METRICS = "PROMETHEUS_MULTIPROC_DIR"
_LIVE, _RAN = "sglang_perf_patches_live", "sglang_perf_patches_ran"
_INFO = "sglang_perf_patches_info"
_WHAT = {
    _LIVE: "Whether a chosen patch is live in a process (1) or not (0).",
    _RAN: "Whether code of a chosen patch has run in a process.",
    _INFO: "The versions and the selection of the patches; always 1.",
}
_gauges: dict[str, Any] = {}
"""Name → gauge. They are kept, because prometheus_client lets a process register a name once."""

_Exported = list[tuple[str, bool, bool]]
"""Of each chosen patch its id, whether it is live and whether it has run."""


def keep(report: Callable[[], Report | None], look_again: Callable[[], object]) -> None:
    """Write this process's record now and whenever it changes, until `drop`.

    `report` gives the states, None once everything is off again; `look_again` is called once a
    second, without any lock held.
    """
    recorder = _Recorder(report, look_again)
    _recorders.append(recorder)
    recorder.guarded(recorder.begin)


def changed() -> None:
    """Wake the recorder after a change. Reads and writes nothing: the caller may hold locks."""
    for recorder in list(_recorders):
        recorder.guarded(recorder.begin, False)
        recorder.woken.put(None)


def resume() -> None:
    """Start the recorder in a forked child whose parent has a record."""
    for recorder in list(_recorders):
        recorder.guarded(recorder.begin)


def drop() -> None:
    """Remove this process's record and stop keeping it."""
    for recorder in list(_recorders):
        with contextlib.suppress(ValueError):  # another call removed it meanwhile
            _recorders.remove(recorder)
        recorder.guarded(recorder.stop)


class _Recorder:
    """Keeps the record of one process. For arguments see `keep`."""

    def __init__(
        self, report: Callable[[], Report | None], look_again: Callable[[], object]
    ) -> None:
        self.report = report
        self.look_again = look_again
        self.has_warned = False
        self.is_known_to_multiprocessing = False
        self.forget()

    def forget(self) -> None:
        """Reset the state to that of a new process: all that a forked child does by itself."""
        self.over = False
        self.has_forked = False
        self.pid = os.getpid()
        self.started = 0.0  # as seconds of `time.time`; 0 before `begin`
        self.thread: threading.Thread | None = None
        self.is_starting = False
        self.due = 0.0
        self.retry_at = 0.0
        self.starting = threading.RLock()
        # Not an Event: a signal handler that came while this thread holds its lock would deadlock.
        # SimpleQueue.put is safe in any thread, signal handler or finaliser.
        self.woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.writing = threading.RLock()
        self.path: Path | None = None
        self.server = self.image = ""
        self.written: dict[str, Any] = {}
        self.startup_log = ready.StartupLog()
        self.exported: _Exported | None = []

    def guarded(self, task: Callable[..., _T], *args: Any) -> _T | None:
        """Run a task; log the first fault, and return None."""
        try:
            return task(*args)
        except BaseException as error:  # any: the thread must reach its next task
            with contextlib.suppress(Exception):
                logger.debug("%s failed", getattr(task, "__qualname__", task), exc_info=True)
                self.warn(error)
            in_main = threading.current_thread() is threading.main_thread()
            if in_main and not isinstance(error, Exception):
                raise  # Ctrl-C belongs to the program
            return None

    def begin(self, at_once: bool = True) -> None:
        """Start the thread, once in a process; `at_once`: write the first record here."""
        if self.over or self.has_thread():
            return
        if not self.started:
            self.started = time.time()
            try:
                folder = records.folder_to_write()
                self.image = procfs.image(self.pid)
                self.server = records.topmost(folder, self.pid)
                self.path = folder / f"{records.name_of(self.pid)}.json"
            except Exception as error:
                self.warn(error)
            self.due = time.monotonic() + _TICK_S
            if at_once:
                self.guarded(self.try_to_write)
        if time.monotonic() >= self.retry_at:
            self.start_thread()

    def start_thread(self) -> None:
        """Start the thread. If that fails, remove the record, which would become outdated."""
        with self.starting:
            if self.has_thread() or self.over or self.is_starting:
                return
            name = "sglang-perf-patches-record"
            thread = threading.Thread(target=self.run, name=name, daemon=True)
            self.is_starting = True  # the lock is reentrant: a signal handler could start another
            try:
                thread.start()
            except Exception as error:  # no more threads, or a subinterpreter
                self.retry_at = time.monotonic() + _TICK_S
                self.due = 0.0
                self.remove()
                self.warn(error)
            else:
                self.thread = thread
            finally:
                self.is_starting = False

    def sleep(self, until: float) -> None:
        """Wait until `until` (seconds of `time.monotonic`) or until woken."""
        with contextlib.suppress(queue.Empty):
            self.woken.get(timeout=max(0.0, until - time.monotonic()))
            while True:
                self.woken.get_nowait()

    def run(self) -> None:
        rested = 0.0
        while True:
            self.sleep(self.due)
            while not self.over and time.monotonic() < rested:
                self.sleep(rested)  # changes come in bursts: one record for all of them
            if self.over:
                return
            self.due = time.monotonic() + _TICK_S
            self.guarded(self.look_again)
            data = self.guarded(self.try_to_write)
            if data is not None:
                self.guarded(self.announce, data)
                self.exported = self.guarded(_export, data, self.exported)
            if self.has_forked:
                self.guarded(self.sweep)  # of children that ended without cleanup
            rested = time.monotonic() + _TICK_S / 4

    def has_thread(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def sweep(self) -> None:
        if self.path is not None:
            records.sweep(self.path.parent)

    def try_to_write(self) -> dict[str, Any] | None:
        """Write the record if it changed, or if a cleaner of temporary files removed it.

        Return it; None if nothing is activated any more.
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
            "prefix": sys.prefix,
            "patches": [asdict(state) for state in report.patches],
        }
        with self.writing:
            if self.over or self.path is None:
                return data
            try:
                if data != self.written or not self.path.exists():
                    records.write(self.path, data)
                    self.written = data
                if self.over:  # a signal handler of this thread called `stop` meanwhile
                    self.remove()
            except (OSError, RecordError) as error:
                self.warn(error)
        return data

    def announce(self, data: dict[str, Any]) -> None:
        """In a server's topmost process: log which patches are live in all of them."""
        if self.startup_log.is_made or (self.path and self.path.stem != self.server):
            return
        others = records.of_server(self.path.parent, self.server) if self.path else []
        self.startup_log.check([data, *(other for other in others if other["pid"] != self.pid)])

    def warn(self, error: BaseException) -> None:
        if not self.has_warned:
            self.has_warned = True
            kind = "" if isinstance(error, RecordError) else f"{type(error).__name__}: "
            logger.warning(
                "sglang-perf-patches: the record is not kept, "
                "`status` will not show process %d: %s%s",
                *(self.pid, kind, error),
            )

    def remove(self) -> None:
        """Remove the record file, but not a parent's."""
        self.written = {}
        if self.path is not None and self.pid == os.getpid():
            with self.writing, contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)

    def tell_multiprocessing(self) -> None:
        """Start and stop recorders with the workers that multiprocessing forks."""
        util: Any = sys.modules.get("multiprocessing.util")
        # While it is being imported it lacks that.
        if self.is_known_to_multiprocessing or not hasattr(util, "register_after_fork"):
            return

        def begin_and_end(recorder: _Recorder) -> None:
            recorder.guarded(recorder.begin)
            # Such a child skips atexit handlers, but runs this.
            util.Finalize(None, recorder.guarded, args=(recorder.stop,), exitpriority=0)

        util.register_after_fork(self, begin_and_end)
        self.is_known_to_multiprocessing = True

    def stop(self) -> None:
        self.over = True
        self.woken.put(None)
        self.remove()
        if self.has_forked and self.pid == os.getpid():
            self.sweep()


# At most one. A list, so that the name is never rebound while another thread iterates.
_recorders: list[_Recorder] = []


def _before_fork() -> None:
    for recorder in list(_recorders):
        recorder.has_forked = True
        recorder.guarded(recorder.tell_multiprocessing)


def _after_fork_in_child() -> None:
    for recorder in _recorders:
        recorder.forget()


def _leave() -> None:
    """At the interpreter's end, when a subinterpreter must have no thread left."""
    threads = [recorder.thread for recorder in _recorders]
    drop()
    for thread in threads:
        if thread is not None and thread is not threading.current_thread():
            with contextlib.suppress(RuntimeError):  # it never started
                thread.join(_END_S)


atexit.register(_leave)
os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)


def _export(data: Mapping[str, Any], before: _Exported | None) -> _Exported | None:
    """Update the metrics from this process's record, if the server has metrics.

    Returns what it exported, or `before` (what it returned before) if there is nothing to do; None
    after a failure, after which it does nothing more.
    """
    # While the module is being imported it has no Gauge yet.
    gauge: Any = getattr(sys.modules.get("prometheus_client"), "Gauge", None)
    if before is None or gauge is None or not os.environ.get(_METRICS):
        return before
    chosen = [patch for patch in data["patches"] if patch["state"] != "off"]
    now = [(patch["id"], patch["state"] == "live", patch["ran"]) for patch in chosen]
    if now == before:
        return before
    try:
        if not _gauges:
            for name in (_LIVE, _RAN):  # "liveall": a series for each process, with its pid
                _gauges[name] = gauge(name, _WHAT[name], ["patch"], multiprocess_mode="liveall")
            labels = ["version", "sglang", "selection"]
            _gauges[_INFO] = gauge(_INFO, _WHAT[_INFO], labels, multiprocess_mode="max")
        for patch_id, is_live, has_run in now:
            _gauges[_LIVE].labels(patch_id).set(int(is_live))
            _gauges[_RAN].labels(patch_id).set(int(has_run))
        _gauges[_INFO].labels(__version__, data["sglang"], data["selection"]).set(1)
    except Exception as error:  # such as a full disk; the server must continue
        logger.debug("no metrics of sglang-perf-patches: %s", error, exc_info=True)
        return None
    return now


def _role() -> str:
    """The role of this process by how it was started; `records` prefers sglang's process title."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    name = spec.name if spec else os.path.basename(getattr(main, "__file__", "") or "python")
    ask = getattr(sys.modules.get("multiprocessing"), "current_process", None)
    process_name = ask().name if ask is not None else "MainProcess"
    if process_name != "MainProcess":
        return str(process_name)
    # `sglang serve` is the console script `sglang`, or the module behind it.
    serves = sys.argv[1:2] == ["serve"] and name.split(".")[0] == "sglang"
    return "launcher" if serves or name.endswith(("launch_server", "serve")) else str(name)
