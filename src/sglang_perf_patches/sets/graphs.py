"""What patches share that capture a prefill's bucket in a further CUDA graph.

Stock's ranks wait for each other at each break of a capture. A further graph has another number of
breaks, so a rank that runs stock's code would wait forever. It can't take part in a collective of
ours either. So each patched rank adds a key to the store of the process group. Stock's runner
passes a barrier after that and before a patch asks `agree`: what is missing behind the barrier will
not come.

Needs torch: imported by install functions only.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from torch import distributed

MOST = 30
"""Buckets, the smallest, of which a server of several ranks captures a further graph: each takes
some two seconds of its boot. By default 30 buckets have up to 512 tokens."""
_made = itertools.count()
_WARM = "_sglang_perf_patches_warm"
"""On what further graphs share once their kernels are loaded."""


def announce(patch: str, state: object) -> str:
    """Tell the other ranks that this one captures with a patch; returns the key for `agree`.

    The number of its breaks and graphs depends on `state`.
    """
    key = f"{patch}/{next(_made)}/{state}/"
    if distributed.is_initialized():
        # add() returns after the store has the key, which set() does not.
        _store().add(f"{key}{distributed.get_rank()}", 1)
    return key


def agree(key: str, ranks: Sequence[int]) -> bool:
    """Whether each rank that takes part in a capture's barriers has announced the same.

    If not, this rank withdraws its announcement. Otherwise a later rank would find all of them.
    """
    if len(ranks) == 1:
        return True
    is_so = bool(_store().check([f"{key}{rank}" for rank in ranks]))
    if not is_so:
        _store().delete_key(f"{key}{distributed.get_rank()}")
    return is_so


def may_have_further(runner: Any, bucket: int) -> bool:
    """Whether a PrefillCudaGraphRunner's bucket may have a further graph."""
    if runner.require_mlp_tp_gather:
        return False  # with DP attention, no rank may choose a graph by its own batch
    is_single = len(runner.backend._tp_group.ranks) == 1
    return is_single or bucket in sorted(runner.capture_num_tokens)[:MOST]


@contextlib.contextmanager
def without_warm_up(runner: Any, capturing: Any, owner: Any) -> Iterator[None]:
    """Within, stock's warm-ups of a capture run nothing, but for an owner's first capture.

    The bucket's other graph was captured just before, and warmed up with the same shapes. Kernels
    that only the further graphs have are compiled and loaded for the first one, which is the
    largest: a capture that loads one fails. `runner` is a PrefillCudaGraphRunner, `capturing` is
    stock's ``_current_capture_var``, and the further graphs of a server share `owner`.
    """
    if not hasattr(owner, _WARM):
        yield
        setattr(owner, _WARM, True)
        return
    backend, capture_one = runner.backend, runner.backend.capture_one

    def captured(key: Any, forward: Any, **rest: Any) -> None:
        capture_one(key, lambda: forward() if capturing.get() is not None else None, **rest)

    backend.capture_one = captured
    try:
        yield
    finally:
        del backend.capture_one


def wait_for_loads(counter: Any, ask: Any, layers: Sequence[int]) -> None:
    """Wait, as stock's eager layers do one by one, until what a request loads from the host is in.

    The pool, whose ``layer_transfer_counter`` is `counter`, waits in Python whenever a layer calls
    `ask` with its number. A replay asks for nothing, so each captured layer's part is asked for.
    """
    if counter is not None and getattr(counter, "consumer_index", 0) >= 0:
        for layer in layers:
            ask(layer)


def _store() -> Any:
    return distributed.distributed_c10d._get_default_store()
