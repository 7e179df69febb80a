"""What one eviction costs a full prefix cache, stock and patched.

usage: PYTHONPATH=tests/harness python tests/benchmarks/swa/evictions.py RELEASE…

A real unified radix cache in Python over real pools, on a CPU, full of leaves of 64 tokens. Stock
and patched take turns, five times: each evicts 64 tokens 20 times, and a new request takes their
place. Prints a table row for each release and number of leaves: the median, and in brackets the
least and the most, in milliseconds of the thread on a core. The first eviction of a patched cache
makes the heap; it has its own column.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

PATCH = "swa.eviction-heap"
LEAVES = (5000, 20_000)
TOKENS = 64
TURNS, EVICTIONS = 5, 20


def main(releases: list[str]) -> int:
    """Measure each release in a process of its own; print the rows."""
    import released

    print("| release | leaves | stock, ms | patched, ms | its first, ms |")
    print("| --- | --- | --- | --- | --- |")
    for release in releases:
        place = released.tree(release, beginning="")
        for line in released.answers(place, Path(__file__), "--here", limit_s=None):
            cells = (_cell(line["stock"]), _cell(line["patched"]), _cell(line["first"]))
            print(f"| {release} | {line['leaves']:,} | {' | '.join(cells)} |", flush=True)
    return 0


def here() -> None:
    """Measure the release on PYTHONPATH; print a JSON line for each number of leaves."""
    from sglang_perf_patches.proof import lent

    lent.lend()
    import logging

    logging.disable(logging.CRITICAL)
    from sglang_perf_patches.proof.comparing import live
    from sglang_perf_patches.proof.swa.prefix_trees import prepare

    prepare()
    for leaves in LEAVES:
        tree = _crowded(leaves)
        found: dict[str, Any] = {"leaves": leaves, "stock": [], "patched": [], "first": []}
        for _ in range(TURNS):
            found["stock"] += _evictions(tree)
            with live(PATCH):
                found["first"] += _evictions(tree, 1)
                found["patched"] += _evictions(tree)
        print(json.dumps(found), flush=True)


def _crowded(leaves: int) -> Any:
    from sglang_perf_patches.proof.swa.evictions import crowded

    return crowded(leaves, tokens=TOKENS)


def _evictions(tree: Any, count: int = EVICTIONS) -> list[float]:
    """Milliseconds of each."""
    from sglang_perf_patches.proof.swa.prefix_trees import Ask

    took = []
    for _ in range(count):
        began = time.thread_time()
        tree.evict(TOKENS)
        took.append(1000 * (time.thread_time() - began))
        _evictions.made += 1  # type: ignore[attr-defined]
        first = -_evictions.made * TOKENS  # type: ignore[attr-defined]
        tree.request(Ask(tuple(range(first, first + TOKENS))))
    return took


_evictions.made = 1  # type: ignore[attr-defined]


def _cell(took: list[float]) -> str:
    return f"{statistics.median(took):.2f} ({min(took):.2f} … {max(took):.2f})"


if __name__ == "__main__":
    sys.exit(here() if sys.argv[1:] == ["--here"] else main(sys.argv[1:]))
