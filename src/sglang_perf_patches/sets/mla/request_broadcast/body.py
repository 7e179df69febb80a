"""mla.request-broadcast: tensor-parallel ranks hear of new requests through shared memory.

In each step of its loop, stock's first rank sends the others what requests have come, mostly none.
It sends them with gloo, through TCP. The group of the ranks also has a queue in shared memory
(``MessageQueue``, ``sglang.srt.distributed.device_communicators.shm_broadcast``), which stock's
scheduler does not use. Open upstream: sgl-project/sglang#39470, #39471.
"""

from __future__ import annotations

import platform
import time
from typing import Any

from ....model.patching import Gated, Patching
from . import BROADCAST, RECEIVER

SWITCH = "sglang_perf_patches: the next requests come through shared memory"
"""The first rank sends this behind its requests: after it, all ranks use the queue."""

_KEY = "mla.request-broadcast/"
_PATIENCE_S = 120.0
"""How long the first rank waits for the others to announce themselves."""


def install(patching: Patching) -> None:
    """Replace the broadcast. All ranks switch in the same step, or none does."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        # The queue's reader relies on stores that become visible in their order.
        raise Gated("the queue in shared memory was tested on x86-64 only")
    # From a rank's first call on, the first rank counts on it: without the patch it would take the
    # switch for a request, and wait for gloo while the others use the queue.
    patching.drain(lambda: calls == 0 or gave_up, "the server ends")
    receiver = patching.module(RECEIVER.partition(":")[0])
    queue: Any = None
    calls, until = 0, 0.0
    gave_up = False
    ran = patching.ran

    def make(inner: Any) -> Any:
        def _broadcast_reqs_across_ranks(self: Any, recv_reqs: Any, local_reqs: Any) -> Any:
            nonlocal queue, calls, until, gave_up
            if queue is not None:
                if recv_reqs is not None:
                    recv_reqs = [*recv_reqs, *(local_reqs or ())]
                return queue.broadcast_object(recv_reqs)
            group = receiver.get_parallel().tp_group
            if gave_up or group.world_size == 1 or group.mq_broadcaster is None:
                return inner(self, recv_reqs, local_reqs)
            calls += 1
            if calls == 1:
                until = time.monotonic() + _PATIENCE_S
                _announce()
            if group.rank_in_group == 0 and calls & (calls - 1) == 0:  # seldom: it asks the store
                if _all_announced(group.ranks):
                    local_reqs = [*(local_reqs or ()), SWITCH]
                elif time.monotonic() > until:
                    gave_up = True
                    patching.gate("a rank of this server runs stock's code here")
            requests = inner(self, recv_reqs, local_reqs)
            if requests and requests[-1] == SWITCH:
                requests = requests[:-1]
                queue = group.mq_broadcaster
                ran.seen = True
            return requests

        return _broadcast_reqs_across_ranks

    patching.override(BROADCAST, make)


def _announce() -> None:
    """Tell the first rank that this one understands `SWITCH`."""
    from torch import distributed

    _store().add(f"{_KEY}{distributed.get_rank()}", 1)


def _all_announced(ranks: Any) -> bool:
    return bool(_store().check([f"{_KEY}{rank}" for rank in ranks]))


def _store() -> Any:
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()
