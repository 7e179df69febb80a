"""Tensor-parallel ranks hear of new requests through shared memory, not through gloo.

In each step of its loop, stock's first rank sends the others what requests have come, mostly none.
It sends them with gloo, through TCP. The group of the ranks also has a queue in shared memory
(``MessageQueue``, ``sglang.srt.distributed.device_communicators.shm_broadcast``), which stock's
scheduler does not use. Open upstream: sgl-project/sglang#39470, #39471.
"""

from __future__ import annotations

import os
import time
from typing import Any

from ....model.declaration import Declaration, gains
from ....model.patch import of
from ..peers import STOCKS, Announced, Peers, require_support
from ..proven import REQUESTS

_MODULE = "sglang.srt.managers.scheduler_components.request_receiver"
_RECEIVER = f"{_MODULE}:SchedulerRequestReceiver"
_DISTRIBUTED = "sglang.srt.distributed"
_QUEUE = f"{_DISTRIBUTED}.device_communicators.shm_broadcast"

PATCH = Declaration(
    *(__name__, "0.5.22 … 0.5.23"),
    only_with=("speculation", "ranks", "one-host", "own-processes", "polling"),
    proven_with=REQUESTS,
    gain_with="eagle",
    worth=gains(
        "MTP on two GPUs: 2.646 ms per token of one request become 2.319", "mla.md#broadcast-1"
    ),
    upstream=("sgl-project/sglang#39470", "sgl-project/sglang#39471"),
    anchors=("sglang.srt.runtime_context:attn_dp_enabled_of",),
    absent_because=(
        "up to 0.5.21 the receiver of requests finds its ranks in other ways, for which the patch "
        "was not written"
    ),
    depends=(
        f"{_RECEIVER}._finalize_shm_features",
        "sglang.srt.managers.mm_utils:ShmPointerMMData",
        "sglang.srt.utils.common:broadcast_pyobj",
        *of(f"{_DISTRIBUTED}.parallel_state:GroupCoordinator", "__init__", "broadcast_object"),
        f"{_QUEUE}:MessageQueue",
        f"{_QUEUE}:ShmRingBuffer",
    ),
)

SWITCH = "sglang_perf_patches: the next requests come through shared memory"
"""The first rank sends this behind its requests: after it, all ranks use the queue."""

_KEY = "mla.request-broadcast/"
_PATIENCE_S = 120.0
"""How long the first rank waits for the others to announce themselves."""
_SLICE_MS = 100


@PATCH.setup()
def setup(patch):
    require_support("the queue")
    state = patch.state
    state.receiver = patch.module(_MODULE)
    state.queue, state.calls, state.until, state.gave_up = None, 0, 0.0, False
    # From a rank's first call on, the first rank counts on it: without the patch it would take the
    # switch for a request, and wait for gloo while the others use the queue. A rank that gave up
    # must not begin again: the store still has what the ranks said before.
    patch.drain(lambda: state.calls == 0, "the server ends")


@PATCH.replaces(f"{_RECEIVER}._broadcast_reqs_across_ranks")
def _broadcast_reqs_across_ranks(self, recv_reqs, local_reqs, *, patch, stock):
    """All ranks switch to the queue in the same step, or none does."""
    state = patch.state
    if state.queue is not None:
        if recv_reqs is not None:
            recv_reqs = [*recv_reqs, *(local_reqs or ())]
        return state.queue.broadcast(recv_reqs)
    group = state.receiver.get_parallel().tp_group
    if state.gave_up or group.world_size == 1 or group.mq_broadcaster is None:
        return stock(self, recv_reqs, local_reqs)
    state.calls += 1
    ranks = Announced(f"{_KEY}process", group.rank, group.ranks)
    refusal = Announced(f"{_KEY}refusal", group.rank, group.ranks[:1])
    if state.calls == 1:
        state.until = time.monotonic() + _PATIENCE_S
        ranks.announce(str(os.getpid()))
    if state.calls & (state.calls - 1) == 0:  # seldom: it asks the store
        why = ""
        if group.rank_in_group:
            why = refusal.of(group.ranks[0]) if refusal.all_have() else ""
        elif ranks.all_have():
            if reserve(group.mq_broadcaster):
                local_reqs = [*(local_reqs or ()), SWITCH]
            else:
                why = "the ranks' queue does not fit into /dev/shm"
        elif time.monotonic() > state.until:
            why = STOCKS
        if why:  # the first rank never sends `SWITCH`, and tells the others so
            state.gave_up = True
            if group.rank_in_group == 0:
                refusal.announce(why)
            patch.gate(why)
    requests = stock(self, recv_reqs, local_reqs)
    if requests and requests[-1] == SWITCH:
        requests = requests[:-1]
        pids = {rank: int(pid) for rank, pid in ranks.of_others().items()}
        state.queue = WatchedQueue(group.mq_broadcaster, Peers(pids))
        patch.ran.seen = True
    return requests


def reserve(queue: Any) -> bool:
    """Have the system allot the memory of a queue, and say whether it could.

    Without that a write into it ends the process (SIGBUS) once ``/dev/shm`` is full.
    """
    memory = queue.buffer.shared_memory
    try:
        with open(f"/dev/shm/{memory.name}", "r+b", buffering=0) as file:  # noqa: S108
            os.posix_fallocate(file.fileno(), 0, memory.size)
    except OSError:
        return False
    return True


class WatchedQueue:
    """Stock's ``MessageQueue`` that knows the other ranks' processes, all on this host."""

    def __init__(self, queue: Any, peers: Peers) -> None:
        ring, size = queue.buffer, queue.buffer.metadata_size
        starts = [ring.metadata_offset + size * part for part in range(ring.max_chunks)]
        self._queue = queue
        self._memory: memoryview = ring.shared_memory.buf
        self._flags = [slice(start, start + size) for start in starts]  # of each part
        self._free = bytes([1] * size)  # the flags of a part that all have read
        self._peers = peers

    def broadcast(self, requests: Any) -> Any:
        """The first rank's requests, on each rank; `RuntimeError` if another rank has ended."""
        queue, memory = self._queue, self._memory
        flags, peers = self._flags[queue.current_idx], self._peers
        if queue._is_writer:
            while memory[flags] != self._free and memory[flags.start] and not peers.ended:
                os.sched_yield()
            if peers.ended:  # also if a part is free: the next steps may wait for a GPU for ever
                raise RuntimeError(peers.ended)
            queue.enqueue(requests)
            return requests
        written, read = flags.start, flags.start + 1 + queue.local_reader_rank
        while not memory[written] or memory[read]:
            ended = peers.ended  # before the flags: what a rank wrote before its end counts
            if ended and (not memory[written] or memory[read]):
                raise RuntimeError(ended)
            os.sched_yield()
        part = queue.current_idx * queue.buffer.max_chunk_bytes
        if memory[part] == 1:  # too large: by the socket
            ended = ""
            while not queue.local_socket.poll(_SLICE_MS):
                if ended:
                    raise RuntimeError(ended)
                ended = peers.ended
        return queue.dequeue()
