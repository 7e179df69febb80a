"""The other ranks of a group on this host: what they announce, and whether one has ended."""

from __future__ import annotations

import os
import platform
import select
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from ...model.patching import Gated

STOCKS = "a rank of this server runs stock's code here"
"""Why ranks stay with gloo."""


def require_support(what: str) -> None:
    """Raise `Gated` where ranks can't share memory; `what` is what they would share."""
    if platform.machine() not in {"x86_64", "AMD64"}:
        # Readers rely on stores that become visible in their order.
        raise Gated(f"{what} in shared memory was tested on x86-64 only")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # this Python, the kernel or a sandbox has no such call
        raise Gated("a rank can't watch the others' processes here (pidfd_open)") from None


class Announced:
    """What the ranks of a group tell each other in the store of their process group.

    Each group has its own topic. Ranks are numbered as in the whole server.
    """

    def __init__(self, topic: str, rank: int, ranks: Iterable[int]) -> None:
        from torch.distributed import distributed_c10d

        self._store: Any = distributed_c10d._get_default_store()
        self._topic, self._rank, self._ranks = topic, rank, [*ranks]

    def announce(self, text: str) -> None:
        """Tell the others. The store has it when this returns."""
        self._store.set(self._key(self._rank), text)
        self._store.get(self._key(self._rank))

    def all_have(self) -> bool:
        """Whether all ranks have announced something."""
        return bool(self._store.check([self._key(rank) for rank in self._ranks]))

    def of(self, rank: int) -> str:
        """What a rank has announced; waits for it."""
        return str(self._store.get(self._key(rank)).decode())

    def of_others(self) -> dict[int, str]:
        """What the other ranks have announced."""
        return {rank: self.of(rank) for rank in self._ranks if rank != self._rank}

    def _key(self, rank: int) -> str:
        return f"{self._topic}/{rank}"


class Peers:
    """The other ranks' processes, and a thread that sleeps until one of them ends.

    `pids` is rank → its process; `ended` says which rank has ended, and is empty while all live.
    """

    def __init__(self, pids: Mapping[int, int]) -> None:
        self.ended = ""
        self._ends = select.poll()
        self._words: dict[int, str] = {}
        for rank, pid in pids.items():
            words = f"rank {rank} of this server has ended"
            try:
                file = os.pidfd_open(pid)
            except ProcessLookupError:
                self.ended = words
                return
            self._words[file] = words
            self._ends.register(file, select.POLLIN)
        threading.Thread(target=self._watch, name="watched ranks", daemon=True).start()

    def _watch(self) -> None:
        self.ended = self._words[self._ends.poll()[0][0]]
