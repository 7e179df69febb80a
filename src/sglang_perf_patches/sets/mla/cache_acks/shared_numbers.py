"""Numbers of which the processes on one host take the smallest, place by place."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

from ..peers import Peers

_BYTES = 8


def reserved(size: int) -> int:
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
        return 2 * ranks * (1 + most) * _BYTES

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
