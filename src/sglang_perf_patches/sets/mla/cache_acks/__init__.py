"""Ranks agree on finished transfers of the hierarchical cache through shared memory, not gloo.

In each step of its loop, stock's ranks reduce how many of these transfers have ended on all of
them, mostly none. They do so with gloo, through TCP.
"""

from __future__ import annotations

import os

from ....model.declaration import Declaration
from ..peers import STOCKS, Announced, Peers, require_support
from ..proven import NUMBERS
from .shared_numbers import SharedNumbers, opened, reserved

_CACHE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"

PATCH = Declaration(
    *(__name__, "0.5.22 … 0.5.23"),
    only_with=("speculation", "ranks", "one-host", "own-processes", "polling", "host-cache"),
    proven_with=NUMBERS,
    gain_with="eagle",
    anchors=("sglang.srt.runtime_context:attn_dp_enabled_of",),
    depends=(f"{_CACHE}._sync_hicache_ready_counts", f"{_CACHE}._all_reduce"),
    absent_because="tested only on 0.5.22 and later",
)

_KEY = "mla.cache-acks/"
_MOST = 30
"""Numbers in one reduction that the shared memory has room for. Stock has two to eight."""


@PATCH.setup()
def setup(patch):
    require_support("numbers")
    state = patch.state
    state.numbers, state.calls, state.gave_up, state.file = None, 0, False, -1
    state.topic, state.offered = "", None
    # From a rank's first call on, the others count on it.
    patch.drain(lambda: state.calls == 0 or state.gave_up, "the server ends")


@PATCH.replaces(f"{_CACHE}._all_reduce_attn_groups")
def _all_reduce_attn_groups(self, tensor, op, *, patch, stock):
    """All ranks switch to the shared memory in the same call, the third, or none does.

    A reduction ends on a rank only after all ranks have begun it. So what each rank has announced
    before one, all of them find after it.
    """
    state = patch.state
    if state.gave_up or not _is_one_of_ours(self, tensor, op):
        return stock(self, tensor, op)
    if state.numbers is None:
        state.calls += 1
        if why := _prepare(state, _group(self)):
            state.gave_up = True
            patch.gate(why)
        if state.file >= 0 and (state.numbers or state.gave_up):
            os.close(state.file)
            state.file = -1
    if state.numbers is None:
        return stock(self, tensor, op)
    values = tensor.numpy()
    values[:] = state.numbers.smallest(values.tolist())
    patch.ran.seen = True
    return None


def _is_one_of_ours(cache, tensor, op):
    """Whether it is a list of numbers of which the ranks of one group take the smallest."""
    from torch import distributed, int64

    context = cache.attn_cp_group
    return (
        op == distributed.ReduceOp.MIN
        and tensor.dtype == int64
        and tensor.dim() == 1
        and 0 < len(tensor) <= _MOST
        and (context is None or distributed.get_world_size(group=context) == 1)
        and _group(cache) is not None
    )


def _group(cache):
    """Whose ranks stock reduces over; None if there is one rank."""
    from torch import distributed

    for group in (cache.attn_tp_group, cache.tp_group):
        if group is not None and distributed.get_world_size(group=group) > 1:
            return group
    return None


def _prepare(state, group):
    """What a rank does before each of the first three reductions; why none of them switches."""
    from torch import distributed

    rank, ranks = distributed.get_rank(), distributed.get_process_group_ranks(group)
    if state.calls == 1:
        # Ranks whose patches do not begin at the same collective never find each other.
        state.topic = f"{_KEY}{ranks[0]}/{group._get_sequence_number_for_group()}"
    processes = Announced(f"{state.topic}/process", rank, ranks)
    outcomes = Announced(f"{state.topic}/outcome", rank, ranks)
    if state.calls == 1:
        if rank == ranks[0]:
            state.file = reserved(SharedNumbers.needs(len(ranks), _MOST))
        processes.announce(f"{os.getpid()} {state.file}")
        return ""
    if not processes.all_have():
        return STOCKS
    if state.calls == 2:
        state.offered = _offered(state, processes, rank, ranks)
        outcomes.announce("ready" if state.offered else "not ready")
        return ""
    if {*outcomes.of_others().values(), outcomes.of(rank)} != {"ready"}:
        return "the ranks have no memory that they share"
    state.numbers = state.offered
    return ""


def _offered(state, processes, rank, ranks):
    """The ranks' memory with all that this rank needs for it; None if it lacks something."""
    pids = {other: int(told.split()[0]) for other, told in processes.of_others().items()}
    try:
        if rank != ranks[0]:
            state.file = opened(*map(int, processes.of(ranks[0]).split()))
        peers = Peers(pids)
        numbers = SharedNumbers(state.file, ranks.index(rank), len(ranks), _MOST, peers)
    except (OSError, RuntimeError):  # no such file, or no more files or threads
        return None
    return None if peers.ended else numbers
