"""What ranks of one host tell each other in a step: gloo's collectives and shared memory's.

    python tests/benchmarks/rig/exchanges.py OUT.json [RANKS …]

For each number of ranks (2 4 8) real gloo groups of that many processes do what a scheduler's step
of sglang 0.5.23 does, and then the same through flags in shared memory:

- ``reduce``: the smallest of one number of each rank, known to all (hierarchical cache with TP, and
  each queue of a disaggregated server);
- ``gather``: five numbers of each rank, known to all (DP attention's sizes);
- ``object``: an empty list of requests from the first rank (two broadcasts: a size, then bytes).

OUT.json: ``{RANKS: {WHAT: {"gloo", "shared": quartiles of the slowest rank's microseconds}}}``.
"""

from __future__ import annotations

import json
import os
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context, shared_memory
from typing import Any

ROUNDS, WARM, CALLS = 60, 10, 20
_SLOT = 64  # a cache line for each rank: its step, then its numbers


class Board:
    """A line of each rank in shared memory, twice: a rank may be one step ahead of another."""

    def __init__(self, name: str, rank: int, ranks: int) -> None:
        self._memory = shared_memory.SharedMemory(name=name)
        assert self._memory.buf is not None
        self._view = self._memory.buf.cast("q")
        self._rank, self._ranks, self._step = rank, ranks, 0

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """The numbers of each rank, at most seven."""
        self._step += 1
        view, step = self._view, self._step
        half = (step & 1) * self._ranks * 8
        mine = half + self._rank * 8
        for place, number in enumerate(numbers, mine + 1):
            view[place] = number
        view[mine] = step
        count, found = len(numbers), []
        for rank in range(self._ranks):
            at = half + rank * 8
            while view[at] != step:
                os.sched_yield()
            found.append(view[at + 1 : at + 1 + count].tolist())
        return found

    def close(self) -> None:
        self._view.release()
        self._memory.close()


def work(rank: int, ranks: int, store: str, name: str, results: Any) -> None:
    """One rank: each way by turns."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    board = Board(name, rank, ranks)
    one, five = torch.tensor([rank]), torch.arange(5)
    every = [torch.empty_like(five) for _ in range(ranks)]
    data = pickle.dumps([])

    def gloo_object() -> None:
        size = torch.tensor([len(data)]) if rank == 0 else torch.empty(1, dtype=torch.long)
        dist.broadcast(size, 0)
        if rank == 0:
            held = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        else:
            held = torch.empty(int(size.item()), dtype=torch.uint8)
        dist.broadcast(held, 0)
        pickle.loads(bytes(held.numpy()))

    def shared_object() -> None:
        number = int.from_bytes(data, "little") if rank == 0 else 0
        size = (number.bit_length() + 7) // 8
        first = board.gather([number, size])[0]
        pickle.loads(first[0].to_bytes(first[1], "little"))

    ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "reduce": (
            lambda: dist.all_reduce(one.clone(), dist.ReduceOp.MIN),
            lambda: min(each[0] for each in board.gather([rank])),
        ),
        "gather": (lambda: dist.all_gather(every, five), lambda: board.gather([1, 2, 3, 4, 5])),
        "object": (gloo_object, shared_object),
    }
    told: dict[str, list[list[float]]] = {}
    for what, pair in ways.items():
        for number in range(-WARM, ROUNDS):
            times = []
            for way in pair:
                dist.barrier()
                began = time.perf_counter()
                for _ in range(CALLS):
                    way()
                times.append((time.perf_counter() - began) / CALLS * 1e6)
            if number >= 0:
                told.setdefault(what, []).append(times)
    results.put((rank, told))
    dist.barrier()
    board.close()
    dist.destroy_process_group()


def measure(ranks: int) -> dict[str, Any]:
    context = get_context("spawn")
    memory = shared_memory.SharedMemory(create=True, size=2 * ranks * _SLOT)
    results = context.Queue()
    try:
        with tempfile.TemporaryDirectory() as folder:
            arguments = (ranks, f"{folder}/store", memory.name, results)
            each = [context.Process(target=work, args=(rank, *arguments)) for rank in range(ranks)]
            for process in each:
                process.start()
            told = [results.get(timeout=120)[1] for _ in each]
            for process in each:
                process.join(30)
    finally:
        memory.close()
        memory.unlink()
    found: dict[str, Any] = {}
    for what in told[0]:
        for place, way in enumerate(("gloo", "shared")):
            slowest = [max(mine[what][at][place] for mine in told) for at in range(ROUNDS)]
            quartiles = statistics.quantiles(slowest, n=4)
            found.setdefault(what, {})[way] = [round(value, 1) for value in quartiles]
    return found


def main(words: list[str]) -> int:
    if not words or not all(word.isdigit() and int(word) > 1 for word in words[1:]):
        print(__doc__, file=sys.stderr)
        return 2
    found = {}
    for ranks in map(int, words[1:] or ("2", "4", "8")):
        found[ranks] = measure(ranks)
        print(ranks, json.dumps(found[ranks]), flush=True)
        with open(words[0], "w", encoding="utf-8") as file:
            json.dump({"cpus": os.cpu_count(), "ranks": found}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
