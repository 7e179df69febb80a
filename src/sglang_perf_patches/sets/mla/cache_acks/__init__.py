"""Ranks agree on finished transfers of the hierarchical cache through shared memory, not gloo.

In each step of its loop, stock's ranks reduce how many of these transfers have ended on all of
them, mostly none. They do so with gloo, through TCP.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence

from ....model.declaration import Declaration
from ....model.patching import Gated
from ..peers import STOCKS, Announced, Peers, require_support
from ..proven import NUMBERS

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
    state.joining, state.numbers, state.gave_up = None, None, False
    # From a rank's first call on, the others count on it.
    patch.drain(lambda: state.joining is None or state.gave_up, "the server ends")


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
        state.joining = state.joining or _joined(_group(self))
        try:
            state.numbers = next(state.joining)
        except Gated as refused:
            state.gave_up = True
            patch.gate(str(refused))
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


def _joined(group) -> Iterator[SharedNumbers | None]:
    """What a rank does before each of the first three reductions: twice None, then the numbers.

    Raises:
        Gated: a rank can't or does not take part, so all stay with gloo.
    """
    from torch import distributed

    rank, ranks = distributed.get_rank(), distributed.get_process_group_ranks(group)
    # Ranks whose patches do not begin at the same collective never find each other.
    topic = f"{_KEY}{ranks[0]}/{group._get_sequence_number_for_group()}"
    processes = Announced(f"{topic}/process", rank, ranks)
    outcomes = Announced(f"{topic}/outcome", rank, ranks)
    file = _reserved(SharedNumbers.needs(len(ranks), _MOST)) if rank == ranks[0] else -1
    try:
        processes.announce(f"{os.getpid()} {file}")
        yield None
        if not processes.all_have():
            raise Gated(STOCKS)
        pids = {other: int(told.split()[0]) for other, told in processes.of_others().items()}
        try:
            if rank != ranks[0]:
                file = opened(*map(int, processes.of(ranks[0]).split()))
            peers = Peers(pids)
            numbers = SharedNumbers(file, ranks.index(rank), len(ranks), _MOST, peers)
            is_ready = not peers.ended
        except (OSError, RuntimeError):  # no such file, or no more files or threads
            is_ready = False
        outcomes.announce("ready" if is_ready else "not ready")
        yield None
        if {*outcomes.of_others().values(), outcomes.of(rank)} != {"ready"}:
            raise Gated("the ranks have no memory that they share")
    finally:
        if file >= 0:
            os.close(file)
    yield numbers


def _reserved(size: int) -> int:
    """A file of so many bytes in memory, which no folder has; -1 where there is none."""
    try:
        file = os.memfd_create("mla.cache-acks")
    except (AttributeError, OSError):
        return -1
    try:
        os.posix_fallocate(file, 0, size)
    except OSError:
        os.close(file)
        return -1
    return file


def opened(pid: int, file: int) -> int:
    """Another process's file; raises `OSError` if it can't be opened."""
    return os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR)


class SharedNumbers:
    """A place in shared memory for each rank's numbers of this round, and of the one before.

    A rank is never two rounds ahead of another one, since it waits in each for all of them. So it
    writes over numbers that all have read. The file is the memory, of `needs` bytes for so many
    ranks and at most so many numbers in a round; `rank` is this one, `peers` are the others.

    Raises:
        OSError: there is no such file, or it can't be mapped.
    """

    def __init__(self, file: int, rank: int, ranks: int, most: int, peers: Peers) -> None:
        os.fstat(file)  # mmap takes -1 for memory that nobody shares
        memory = memoryview(mmap.mmap(file, self.needs(ranks, most)))
        self._numbers: memoryview = memory.cast("q")
        self._rank, self._peers, self._round = rank, peers, 0
        self._places = [
            [(1 + most) * (2 * each + parity) for each in range(ranks)] for parity in range(2)
        ]

    @staticmethod
    def needs(ranks: int, most: int) -> int:
        """Bytes of shared memory."""
        return 2 * ranks * (1 + most) * 8

    def smallest(self, mine: Sequence[int]) -> list[int]:
        """The smallest of all ranks' numbers at each place; `RuntimeError` if a rank has ended."""
        numbers, count = self._numbers, len(mine)
        self._round += 1
        places = self._places[self._round % 2]
        at = places[self._rank]
        for offset, number in enumerate(mine, 1):
            numbers[at + offset] = number
        numbers[at] = self._round  # last: whoever sees it finds the numbers
        for place in places:
            while numbers[place] != self._round:
                ended = self._peers.ended  # before the place: what a rank wrote before it counts
                if ended and numbers[place] != self._round:
                    raise RuntimeError(ended)
                os.sched_yield()
        rows = [numbers[place + 1 : place + 1 + count].tolist() for place in places]
        return [min(column) for column in zip(*rows, strict=True)]
