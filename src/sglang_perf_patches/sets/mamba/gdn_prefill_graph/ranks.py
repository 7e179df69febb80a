"""Whether all ranks of a server capture alike, and replay alike.

Stock's ranks wait for each other at each break of a capture. The patch changes the number of
breaks, so a rank that runs stock's code would wait forever. It can't take part in a collective of
ours either. So each patched rank adds a key to the store of the process group when its backend is
made. Stock's runner passes a barrier after that and before it captures: what is missing behind the
barrier will not come.

Needs torch: imported when a backend is made.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import distributed

MOST = 30
"""Buckets, the smallest ones, of which a server of several ranks also captures graphs of one
request: each takes some two seconds of its boot. The default has so many of up to 512 tokens."""
_made = itertools.count()
_KEY = "_sglang_perf_patches_key"


def announce(backend: Any, state: object) -> None:
    """Tell the other ranks that this one captures a backend's layers.

    The number of its breaks and graphs depends on `state`.
    """
    if distributed.is_initialized():
        key = f"mamba.gdn-prefill-graph/{next(_made)}/{state}/"
        setattr(backend, _KEY, key)
        # add() returns after the store has the key, which set() does not.
        _store().add(f"{key}{distributed.get_rank()}", 1)


def agree(backend: Any, ranks: Sequence[int]) -> bool:
    """Whether each rank that takes part in a capture's barriers has announced the same state."""
    return len(ranks) == 1 or _store().check([f"{getattr(backend, _KEY)}{rank}" for rank in ranks])


def may_have_one(runner: Any, bucket: int) -> bool:
    """Whether a runner's bucket may also have a graph of one request."""
    if runner.require_mlp_tp_gather:
        return False  # with DP attention, no rank may choose a graph by its own batch
    is_single = len(runner.backend._tp_group.ranks) == 1
    return is_single or bucket in sorted(runner.capture_num_tokens)[:MOST]


def all_fit(tables: Any, forward_batch: Any) -> bool:
    """Whether the batch fits the tables and, with DP attention, so does that of each other rank.

    All ranks must replay the same one of a bucket's graphs: a captured all-reduce reads the memory
    of the other ranks at the addresses of that graph. The scheduler has gathered each rank's tokens
    and its rows of logits, of which a request has at least one.
    """
    tokens = getattr(forward_batch, "original_global_num_tokens_cpu", None)
    if tokens is None:
        lens = forward_batch.extend_seq_lens_cpu
        return bool(tables.holds(sum(lens), len(lens)))
    return all(map(tables.holds, tokens, forward_batch.global_num_tokens_for_logprob_cpu))


def _store() -> Any:
    return distributed.distributed_c10d._get_default_store()
