"""Stock's queue in shared memory, whose ranks notice that one of them has ended.

Stock's own waits for ever then. gloo raises, and that ends the server.
"""

from __future__ import annotations

import os
from typing import Any

from ..peers import Peers

_SLICE_MS = 100


def reserve(queue: Any) -> bool:
    """Have the system allot the memory of a queue, and say whether it could.

    Without that a write into it ends the process (SIGBUS) once ``/dev/shm`` is full.
    """
    memory = queue.buffer.shared_memory
    try:
        file = os.open(f"/dev/shm/{memory.name}", os.O_RDWR)  # noqa: S108
        try:
            os.posix_fallocate(file, 0, memory.size)
        finally:
            os.close(file)
    except OSError:
        return False
    return True


class WatchedQueue:
    """A queue that knows the other ranks' processes.

    Args:
        queue: stock's ``MessageQueue``.
        peers: the other ranks, all on this host.
    """

    def __init__(self, queue: Any, peers: Peers) -> None:
        ring, size = queue.buffer, queue.buffer.metadata_size
        starts = [ring.metadata_offset + size * part for part in range(ring.max_chunks)]
        self._queue = queue
        self._memory: memoryview = ring.shared_memory.buf
        self._flags = [slice(start, start + size) for start in starts]  # of each part
        self._free = bytes([1] * size)  # the flags of a part that all have read
        self._peers = peers

    def broadcast(self, requests: Any) -> Any:
        """The first rank's requests, on each rank.

        Raises:
            RuntimeError: another rank has ended.
        """
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
        if (
            memory[queue.current_idx * queue.buffer.max_chunk_bytes] == 1
        ):  # too large: by the socket
            ended = ""
            while not queue.local_socket.poll(_SLICE_MS):
                if ended:
                    raise RuntimeError(ended)
                ended = peers.ended
        return queue.dequeue()
