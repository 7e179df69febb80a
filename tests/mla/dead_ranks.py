"""A rank that dies ends the others, and so its server, as with stock's gloo."""

import errno
import mmap
import multiprocessing
import os
import resource
import signal
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import zmq
from sglang.srt.managers import scheduler
from sglang.srt.utils.watchdog import SubprocessWatchdog

import sglang_perf_patches
from sglang_perf_patches.verify import Missing
from sglang_perf_patches.verify.comparing import live
from tests.proof.mla.forked import rank_of
from tests.proof.mla.request_broadcast import LARGE, PATCH, Round, play, ranks
from tests.proof.swa.window_server import limit

LATEST_S = 2.0
END = 30
"""The round, after the switch, in which a rank dies."""
_ROUNDS: list[Round] = [([], [])] * 60
_WATCH_S = 1.0
"""How often stock's watchdog checks the processes that it started."""

_Process = multiprocessing.get_context("fork").Process


class Clock:
    """Two times that forked processes share: when a rank died, and when its server heard of it."""

    def __init__(self) -> None:
        self.times = memoryview(mmap.mmap(-1, 16)).cast("d")

    def die(self) -> None:
        self.times[0] = time.monotonic()
        os.kill(os.getpid(), signal.SIGKILL)


def killing(clock: Clock, killed: int, rank: int, number: int) -> None:
    """Before a round: let one rank die, `END` rounds after the switch."""
    if (rank, number) == (killed, END):
        clock.die()


def require_raised(each: dict[str, Any], clock: Clock) -> None:
    assert each["raised"].endswith("of this server has ended"), each
    assert each["at"] - clock.times[0] < LATEST_S, each


def require_state(patch: str, reason: str) -> None:
    """In this process the patch is gated with this reason, or live without one."""
    state = sglang_perf_patches.report().of(patch)
    assert (state.state, state.reason) == ("gated" if reason else "live", reason), state


def ranks_that_cannot_watch_are_gated(patch: str) -> None:
    no_call = OSError(errno.ENOSYS, "no such call")
    refused = pytest.raises(Missing, match="pidfd_open")
    with mock.patch.object(os, "pidfd_open", side_effect=no_call), refused, live(patch, ran=None):
        pass


def the_others_raise() -> None:
    for count, killed in ((2, 0), (2, 1), (3, 0), (3, 1), (3, 2)):
        clock = Clock()
        before = partial(killing, clock, killed)
        _check_survivors(_ROUNDS, clock, before=before, count=count, killed=killed)


def a_reader_of_a_large_request_raises() -> None:
    """The first rank dies after it has announced the request, and before it has sent it."""
    clock = Clock()
    send = zmq.Socket.send

    def dying(socket: Any, data: Any, *args: Any, **options: Any) -> Any:
        if len(data) > LARGE:
            clock.die()
        return send(socket, data, *args, **options)

    rounds = [*_ROUNDS[:END], (["x" * LARGE], [])]
    with mock.patch.object(zmq.Socket, "send", dying):
        _check_survivors(rounds, clock, killed=0)


def _check_survivors(rounds: list[Round], clock: Clock, **options: Any) -> None:
    with live(PATCH, ran=None):
        for each in ranks(rounds, **options):
            assert each["gloo"] < END
            require_raised(each, clock)


def the_server_ends() -> None:
    """By stock's own path, also where only a data-parallel controller is above the ranks."""
    for has_controller in (False, True):
        for killed in (0, 1):
            clock = Clock()
            with live(PATCH, ran=None), tempfile.TemporaryDirectory() as folder:
                given = (clock, Path(folder), killed, has_controller)
                server = _Process(target=_server, args=given)
                server.start()
                server.join()
            assert server.exitcode == 0, (has_controller, killed)
            took = clock.times[1] - clock.times[0]
            assert 0 < took < LATEST_S + _WATCH_S * has_controller, took


def _server(clock: Clock, folder: Path, killed: int, has_controller: bool) -> None:
    """The main process: stock's ends its server when it gets SIGQUIT."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit()

    def hears(*_: Any) -> None:
        clock.times[1] = time.monotonic()
        os._exit(0)

    signal.signal(signal.SIGQUIT, hears)
    if has_controller:
        controller = _Process(target=_controller, args=(clock, folder, killed))
        controller.start()
        SubprocessWatchdog([controller], interval=_WATCH_S).start()
    else:
        _start_ranks(clock, folder, killed)
    time.sleep(60)


def _controller(*about: Any) -> None:
    """Stock's has no handler, and checks none of the ranks that it started."""
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    limit()
    _start_ranks(*about)
    time.sleep(60)


def _start_ranks(*about: Any) -> None:
    for rank in range(2):
        _Process(target=_rank, args=(rank, *about)).start()


def _rank(rank: int, clock: Clock, folder: Path, killed: int) -> None:
    """Stock's process of a scheduler; only the scheduler has a stand-in."""
    limit()
    module: Any = scheduler

    class Scheduler:
        gracefully_exit = False
        async_d2h_worker = None
        metrics_reporter = SimpleNamespace(_shutdown_fpm=lambda: None)

        def __init__(self, *_: Any) -> None:
            pass

        def get_init_info(self) -> dict[str, Any]:
            return {}

        def run_event_loop(self) -> None:
            told = rank_of(
                rank, 2, folder, partial(play, _ROUNDS, partial(killing, clock, killed), {})
            )
            if told["raised"]:
                raise RuntimeError(told["raised"])

    tracing = SimpleNamespace(enable_trace=False)
    module.Scheduler, module.get_observability = Scheduler, lambda: tracing
    for name in ("publish", "configure_scheduler_process", "spawn_world_rank"):
        setattr(module, name, lambda *_, **__: 0)
    pipe = SimpleNamespace(send=lambda _: None)
    module.run_scheduler_process(None, None, rank, rank, 0, None, pipe)


CHECKS = {
    check.__name__: check
    for check in (the_others_raise, a_reader_of_a_large_request_raises, the_server_ends)
}
