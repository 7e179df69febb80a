"""What one eviction costs a full prefix cache, stock and patched.

usage: PYTHONPATH=tests/harness python tests/benchmarks/swa/evictions.py RELEASE…

A real unified radix cache in Python over real pools, on a CPU, full of leaves of 64 tokens. Stock
and patched take turns, some times over: each evicts 64 tokens 20 times, and a new request takes
their place. Prints a table row for each release and number of leaves, in milliseconds of the thread
on a core: the median, and in brackets the quartiles. The first eviction of a patched cache makes
the heap; it has its own column. "And a request" is an eviction with all that the tree does for
the request after it: what a small cache pays for the heap shows there.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

PATCH = "swa.eviction-heap"
TURNS = {4: 25, 100: 25, 1000: 10, 5000: 5, 20_000: 5}
"""Leaves of a cache → turns."""
TOKENS = 64
EVICTIONS = 20


def main(releases: list[str]) -> int:
    """Measure each release in a process of its own; print the rows."""
    import released

    names = ("stock", "patched", "its first", "stock, and a request", "patched, and a request")
    print(f"| release | leaves | {' | '.join(names)} |")
    print(f"| --- | --- |{' --- |' * len(names)}")
    for release in releases:
        place = released.tree(release, beginning="")
        for line in released.answers(place, Path(__file__), "--here", limit_s=None):
            cells = [_cell(line[name]) for name in names]
            print(f"| {release} | {line['leaves']:,} | {' | '.join(cells)} |", flush=True)
    return 0


def here() -> None:
    """Measure the release on PYTHONPATH; print a JSON line for each number of leaves."""
    from tests.proof import stubs

    stubs.lend()
    import gc
    import logging

    logging.disable(logging.CRITICAL)
    from sglang_perf_patches.verify.comparing import live
    from tests.proof.swa.evictions import crowded
    from tests.proof.swa.prefix_trees import prepare

    prepare()
    for leaves, turns in TURNS.items():
        cycle = _Cycle(crowded(leaves, tokens=TOKENS))
        gc.collect()
        times: dict[str, list[float]] = {"its first": []}
        for turn in range(turns):
            for name in ("stock", "patched")[:: 1 if turn % 2 else -1]:
                evictions = times.setdefault(name, [])
                whole = times.setdefault(f"{name}, and a request", [])
                if name == "stock":
                    cycle.take(EVICTIONS, evictions, whole)
                    continue
                with live(PATCH):
                    cycle.take(1, times["its first"], [])
                    cycle.take(EVICTIONS, evictions, whole)
        print(json.dumps({"leaves": leaves, **times}), flush=True)


class _Cycle:
    """Evictions of a leaf, each with a request that takes its place."""

    def __init__(self, tree: Any) -> None:
        self._tree, self._made = tree, 0

    def take(self, count: int, evictions: list[float], whole: list[float]) -> None:
        """Add the milliseconds of each."""
        from tests.proof.swa.prefix_trees import Ask

        for _ in range(count):
            self._made += 1
            ask = Ask(tuple(range(-self._made * TOKENS, (1 - self._made) * TOKENS)))
            began = time.thread_time()
            self._tree.evict(TOKENS)
            between = time.thread_time()
            self._tree.request(ask)
            evictions.append(1000 * (between - began))
            whole.append(1000 * (time.thread_time() - began))


def _cell(took: list[float]) -> str:
    first, median, last = statistics.quantiles(took, n=4)
    return f"{median:.2f} ({first:.2f} … {last:.2f})"


if __name__ == "__main__":
    sys.exit(here() if sys.argv[1:] == ["--here"] else main(sys.argv[1:]))
