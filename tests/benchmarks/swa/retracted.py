"""What becomes of requests whose retracted KV the host's pool can't hold, stock and patched.

usage: PYTHONPATH=tests/harness python tests/benchmarks/swa/retracted.py RELEASE…

Real queue, pools, allocator and batch, on a CPU, at page size 1 with a window of 128. Retracted KV
goes where the release puts it if it is not told. Prints a table, and returns 1 if a patched cell
fails a request that stock finishes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import released

CELLS = (
    {"swa_tokens": 6000, "full_tokens": 262_144, "prompt": 1000, "new": 400},
    {"swa_tokens": 6000, "full_tokens": 262_144, "prompt": 1000, "new": 2000},
    {"swa_tokens": 8192, "full_tokens": 262_144, "prompt": 1000, "new": 400},
    {"swa_tokens": 8192, "full_tokens": 262_144, "prompt": 1000, "new": 2000},
    {"swa_tokens": 10_000, "full_tokens": 80_000, "prompt": 1000, "new": 4000},
    {"swa_tokens": 9000, "full_tokens": 40_000, "prompt": 500, "new": 4000},
)
SELECTIONS = ("none", "swa")


def main(releases: list[str]) -> int:
    """Play every cell on each release; print a row for each."""
    heading = ("release", "pools", "64 requests", "finished", "failed", "retractions")
    heading += ("most tokens in tensors", "tokens a step")
    print("|", " | ".join(heading), "|")
    print("|", " | ".join("---" for _ in heading), "|")
    worse = False
    for release in releases:
        for cell, stock, ours in zip(CELLS, *_played(release), strict=True):
            worse = worse or ours["finished"] < stock["finished"]
            tokens = 64 * (cell["new"] - 1)
            pairs = [
                *((stock[name], ours[name]) for name in ("finished", "aborted", "retractions")),
                (stock["in_tensors"], ours["in_tensors"]),
                tuple(round(tokens / each["steps"], 1) for each in (stock, ours)),
            ]
            pools = f"{cell['swa_tokens']:,}, {cell['full_tokens']:,}"
            words = [f"{before:,} → {after:,}" for before, after in pairs]
            print("|", release, "|", pools, "|", f"{cell['prompt']:,} + {cell['new']:,}", end=" | ")
            print(" | ".join(words), "|", flush=True)
    return int(worse)


def _played(release: str) -> list[list[dict[str, Any]]]:
    jobs: list[released.Job] = []
    for text in SELECTIONS:
        jobs.append(("select", {"text": text}))
        jobs += [("backed_up", dict(cell)) for cell in CELLS]
    module = Path(__file__).parents[2] / "swa" / "jobs.py"
    answers = released.play(released.tree(release), module, jobs)
    values = [answer["value"] for answer in answers if answer["job"] == "backed_up"]
    return [values[: len(CELLS)], values[len(CELLS) :]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
