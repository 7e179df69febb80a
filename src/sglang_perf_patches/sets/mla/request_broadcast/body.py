"""mla.request-broadcast: tensor-parallel ranks hear of new requests through shared memory.

In each step of its loop, stock's first rank sends the others what requests have come, mostly none.
It sends them with gloo, through TCP. The group of the ranks also has a queue in shared memory
(``MessageQueue``, ``sglang.srt.distributed.device_communicators.shm_broadcast``), which stock's
scheduler does not use. Open upstream: sgl-project/sglang#39470, #39471.
"""

from __future__ import annotations

import os
import platform
import time
from typing import Any

from ....model.patching import Gated, Patching
from . import BROADCAST, RECEIVER
from .watched_queue import WatchedQueue, can_watch, reserve

SWITCH = "sglang_perf_patches: the next requests come through shared memory"
"""The first rank sends this behind its requests: after it, all ranks use the queue."""

_KEY = "mla.request-broadcast/"
_NO_MEMORY = "the ranks' queue does not fit into /dev/shm"
_PATIENCE_S = 120.0
"""How long the first rank waits for the others to announce themselves."""


def install(patching: Patching) -> None:
    """Replace the broadcast. All ranks switch in the same step, or none does."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        # The queue's reader relies on stores that become visible in their order.
        raise Gated("the queue in shared memory was tested on x86-64 only")
    if not can_watch():
        raise Gated("a rank can't watch the others' processes here (pidfd_open)")
    # From a rank's first call on, the first rank counts on it: without the patch it would take the
    # switch for a request, and wait for gloo while the others use the queue.
    patching.drain(lambda: calls == 0 or gave_up, "the server ends")
    receiver = patching.module(RECEIVER.partition(":")[0])
    queue: Any = None
    calls, until = 0, 0.0
    gave_up = False
    ran = patching.ran

    def give_up(why: str) -> None:
        nonlocal gave_up
        gave_up = True
        patching.gate(why)

    def make(inner: Any) -> Any:
        def _broadcast_reqs_across_ranks(self: Any, recv_reqs: Any, local_reqs: Any) -> Any:
            nonlocal queue, calls, until
            if queue is not None:
                if recv_reqs is not None:
                    recv_reqs = [*recv_reqs, *(local_reqs or ())]
                return queue.broadcast(recv_reqs)
            group = receiver.get_parallel().tp_group
            if gave_up or group.world_size == 1 or group.mq_broadcaster is None:
                return inner(self, recv_reqs, local_reqs)
            calls += 1
            ranks = _Ranks(group)
            if calls == 1:
                until = time.monotonic() + _PATIENCE_S
                ranks.announce()
            if calls & (calls - 1) == 0:  # seldom: it asks the store
                if group.rank_in_group:
                    if why := ranks.decision():
                        give_up(why)
                elif ranks.announced():
                    if reserve(group.mq_broadcaster):
                        local_reqs = [*(local_reqs or ()), SWITCH]
                    else:
                        give_up(ranks.decide(_NO_MEMORY))
                elif time.monotonic() > until:
                    give_up(ranks.decide("a rank of this server runs stock's code here"))
            requests = inner(self, recv_reqs, local_reqs)
            if requests and requests[-1] == SWITCH:
                requests = requests[:-1]
                queue = WatchedQueue(group.mq_broadcaster, ranks.pids())
                ran.seen = True
            return requests

        return _broadcast_reqs_across_ranks

    patching.override(BROADCAST, make)


class _Ranks:
    """What the ranks of a group tell each other in the store of their process group."""

    def __init__(self, group: Any) -> None:
        from torch.distributed import distributed_c10d

        self._group = group
        self._store: Any = distributed_c10d._get_default_store()
        self._why = f"{_KEY}{group.ranks[0]}/why"

    def announce(self) -> None:
        """Tell the first rank that this one understands `SWITCH`, and all which process it is."""
        self._store.set(f"{_KEY}{self._group.rank}", str(os.getpid()))

    def announced(self) -> bool:
        """Whether all ranks have."""
        return bool(self._store.check([f"{_KEY}{rank}" for rank in self._group.ranks]))

    def pids(self) -> dict[int, int]:
        """The processes of the other ranks, all of which have announced themselves."""
        others = (rank for rank in self._group.ranks if rank != self._group.rank)
        return {rank: int(self._store.get(f"{_KEY}{rank}")) for rank in others}

    def decide(self, why: str) -> str:
        """Tell the others that the first rank never sends `SWITCH`."""
        self._store.set(self._why, why)
        return why

    def decision(self) -> str:
        """Why the first rank never sends it; empty if it may."""
        return self._store.get(self._why).decode() if self._store.check([self._why]) else ""
