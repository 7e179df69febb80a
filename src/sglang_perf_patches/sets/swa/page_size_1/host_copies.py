"""Retracted KV that the host's pool can't hold is kept as tensors, as releases before 0.5.18 do.

From 0.5.19 on a decode server backs retracted KV up in a host pool of 0.2 of the device's, and
aborts a request that does not fit (``backup_kv_cache``, ``sglang.srt.mem_cache.common``). On 0.5.18
that pool is as large as the device's, and a request that does not fit ends the scheduler. With
tails more requests run, so more may be retracted than stock's few ever fill that pool with.

While a request is retracted stock admits none. So what is kept is at most the KV of the requests
that were live when the first of them was retracted, and of what they decode meanwhile. How much
the host has left is not asked: the ranks of a server have to decide alike, and each sees another
figure.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Kept(SimpleNamespace):
    """What stock's ``RetractionBackup`` holds, in tensors."""


def in_tensors(cache: Any, req: Any) -> Kept:
    """Copy a request's KV as stock's other backend does."""
    req.offload_kv_cache(cache.req_to_token_pool, cache.token_to_kv_pool_allocator)
    holder = req if hasattr(req, "retraction_backup") else req.kv
    return Kept(**holder.retraction_backup._asdict())
