"""One rank of a server: ``python request_rank.py RANK RANKS PORT SELECTION SERVER``.

The release's scheduler runs its own loop on the CPU, and the first rank gets requests through its
socket. The ranks meet at the port, with gloo. SERVER is JSON, its arguments.
"""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

import importlib
import json
import os
import sys
from typing import Any
from unittest import mock

from tests.proof import stubs

os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "0|1"  # stock wants a NUMA node for each rank

stubs.lend()

import zmq
from torch import distributed

import sglang_perf_patches
from sglang_perf_patches.model.setups import FEATURES
from tests.proof.swa.window_server import WindowServer, tell

FEATURES.uses = ()  # the model has no draft

PATCH = "mla.request-broadcast"
LARGE = 5_000_000
"""Characters of a text that does not fit into a part of the queue: 4 MB."""
QUIET = 3
"""Rounds without a request before each request."""


class Played:
    """A server whose requests come one after the other, through its socket."""

    def __init__(self, server: WindowServer, is_first: bool) -> None:
        self.server, self.scheduler = server, server.scheduler
        self.received: list[Any] = []
        self.rounds = 0
        self._ingest = self.scheduler.ingest_requests
        self._process = self.scheduler.process_input_requests
        self._waits = QUIET
        self._kinds: Any = importlib.import_module("sglang.srt.managers.io_struct")
        self._left: list[Any] = [*self._requests()]
        self._count = len(self._left)
        self.scheduler.process_input_requests = self._processed
        self.scheduler.ingest_requests = self._ingested
        self._aborts: list[Any] = []
        self.scheduler._poll_timeout_aborts = lambda: [self._aborts.pop()] if self._aborts else []
        self._is_first = is_first
        if is_first:
            self._socket = self.scheduler.ipc_channels.recv_from_tokenizer
            self._client = zmq.Context.instance().socket(zmq.PUSH)
            self._client.bind(self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0"))

    def _requests(self) -> Any:
        made: list[Any] = []
        self.scheduler.process_input_requests = made.extend
        for number, (length, new) in enumerate([(30, 3), (5, 2), (90, 4), (64, 1), (20, 2)]):
            ids = [3 + (7 * place + number) % 50 for place in range(length)]
            self.server.submit(ids, new, f"r{number}")
        made[1].input_text = "x" * LARGE
        yield from made[:3]
        yield self._kinds.BatchTokenizedGenerateReqInput(batch=made[3:])
        yield self._kinds.AbortReq(rid="not there")
        yield "aborts"

    def _ingested(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_first and self._left and self.scheduler.is_fully_idle():
            self._waits -= 1
            if self._waits <= 0:
                self._waits, request = QUIET, self._left.pop(0)
                if request == "aborts":
                    self._aborts.append(self._kinds.AbortReq(rid="too late"))
                else:
                    self._kinds.sock_send(self._client, request)
                    assert self._socket.poll(60_000)
        self.rounds += 1
        found = self._ingest(*args, **kwargs)
        if len(self.received) == self._count and self.scheduler.is_fully_idle():
            self.scheduler.gracefully_exit = True
        return found

    def _processed(self, requests: Any) -> Any:
        for one in requests:
            batch = [each.rid for each in getattr(one, "batch", ())]
            size = len(getattr(one, "input_text", None) or "")
            self.received.append([type(one).__name__, getattr(one, "rid", None) or batch, size])
        return self._process(requests)


def main(rank: int, ranks: int, port: int, selection: str, arguments: str) -> None:
    sglang_perf_patches.activate(selection)
    server = WindowServer(rank=rank, port=port, tp_size=ranks, **json.loads(arguments))
    played = Played(server, rank == 0)
    with mock.patch.object(distributed, "broadcast", side_effect=distributed.broadcast) as sends:
        server.scheduler.run_event_loop()
    tell(
        PATCH,
        received=played.received,
        tokens={rid: server.tokens(rid) for rid in server.reqs},
        batches=server.batches,
        through_gloo=sends.call_count,
        rounds=played.rounds,
        ran=sglang_perf_patches.report().of(PATCH).ran,
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:])  # type: ignore[call-arg]
