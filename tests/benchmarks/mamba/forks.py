"""What a request that forks from a cached prefix finds, and what few slots for states cost in hits.

    python tests/benchmarks/mamba/forks.py [STATES_PER_PATH]

A server of the release's own scheduler, pools and prefix cache runs on a CPU without its model, in
pages of 64 tokens and chunks of 256. First, prompts of 700 tokens are cached, alone or beside one
of 100, and three requests fork from each at the same place. Then 48 requests of 6 prefixes of 512
tokens follow each other, with 12 to 60 slots. STATES_PER_PATH is ``--mamba-max-states-per-path``.
Run it with the release, its packages and ``src`` on PYTHONPATH.
"""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

from __future__ import annotations

import logging
import sys
import warnings
from random import Random

warnings.simplefilter("ignore")

from tests.proof import lent

lent.lend()

from sglang_perf_patches.verify import stock
from tests.proof.mamba.hybrid_parts import Shape, trees
from tests.proof.mamba.hybrid_server import HybridServer

DRAW = Random(5)


def main() -> None:
    """Print a line for each case."""
    logging.disable(logging.WARNING)
    if sys.argv[1:]:
        stock.EXTRA_ARGUMENTS["mamba_max_states_per_path"] = int(sys.argv[1])
    for others in ((), (100,)):
        for place in (256, 384, 512):
            print(f"beside {list(others)}, fork at {place}: {forks(others, place)}", flush=True)
    for slots in (12, 20, 30, 60):
        print(f"{slots} slots: {hits(slots):.2f} of the shared tokens are hits", flush=True)


def forks(others: tuple[int, ...], place: int) -> list[int]:
    """Tokens that each of three forks from a cached prompt finds."""
    server = _server(60, 8)
    for length in others:
        server.submit(_unique(length), 1)
    prompt = _unique(700)
    server.submit(prompt, 1)
    server.drain()
    return [_found(server, [*prompt[:place], *_unique(200)]) for _ in range(3)]


def hits(slots: int) -> float:
    """How much of their shared prefixes requests find."""
    server = _server(slots, 2)
    prefixes = [_unique(512) for _ in range(6)]
    asked = [[*DRAW.choice(prefixes), *_unique(130)] for _ in range(48)]
    return sum(_found(server, ids, 3) for ids in asked) / (512 * len(asked))


def _server(slots: int, rows: int) -> HybridServer:
    return HybridServer(
        Shape(trees()[0], tracked=True, slots=slots, tokens=64 * 400, rows=rows, chunk=256)
    )


def _unique(length: int) -> list[int]:
    return [DRAW.randint(100, 900) for _ in range(length)]


def _found(server: HybridServer, ids: list[int], new: int = 1) -> int:
    req = server.submit(ids, new)
    server.drain()
    return int(req.cached_tokens)


if __name__ == "__main__":
    main()
