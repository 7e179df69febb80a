"""Requests that end while the next verify has them: stock dies, or overwrites a cached state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import sglang

from sglang_perf_patches.model.releases import KNOWN
from sglang_perf_patches.verify import Different, Inputs
from sglang_perf_patches.verify.comparing import both, live, require, require_same
from tests.proof.mamba.constrained_server import Constrained, ConstrainedServer
from tests.proof.mamba.hybrid_parts import trees

PATCH = "mamba.freed-rows"
EAGLE_WAITS_UNTIL = "0.5.16"
"""From the next release on EAGLE's verify follows a grammar by itself: NGRAM alone waits."""
DIES = "'NoneType' object cannot be interpreted as an integer"
EPISODES = 4


def algorithm() -> str:
    """A speculation of this release for which the scheduler waits for a grammar's results."""
    eagle = KNOWN.index(sglang.__version__) <= KNOWN.index(EAGLE_WAITS_UNTIL)
    return "EAGLE" if eagle else "NGRAM"


def server(speculation: str, **settings: Any) -> ConstrainedServer:
    asked = {"slots": 40, "drafts": 6, **settings}
    return ConstrainedServer(Constrained(trees()[0], tracked=True, algorithm=speculation, **asked))


def before_a_boundary(speculation: str) -> ConstrainedServer:
    """A reply ends right before the next state is tracked; then its prefix is asked for again.

    Its state of 64 tokens is cached in the first of the two slots that it had.
    """
    made = server(speculation)
    made.submit([11] * 20, 105)
    made.drain()
    made.submit([11] * 20 + [5] * 50 + [13] * 30, 3)
    return made


def played(speculation: str) -> str:
    return drained(lambda: before_a_boundary(speculation))


def drained(make: Callable[[], ConstrainedServer]) -> str:
    """What a server dies of, or which state is wrong; empty if it drains."""
    try:
        made = make()
        made.drain()
        made.check_drained()
    except (TypeError, Different) as error:
        return str(error)
    return ""


def where_stock_goes_wrong(_: Inputs) -> int:
    """Stock dies of the reply's end or continues from another state; patched neither."""
    stock = played(algorithm())
    require(DIES in stock or "with another state" in stock, f"{PATCH}: stock says {stock!r}")
    with live(PATCH):
        patched = played(algorithm())
    require(not patched, f"{PATCH}: {patched}")
    return 1


def episode(seed: int, *speculations: str) -> tuple[list[Any], str, int]:
    """What a drawn server decides, what it dies of, and how many rows were freed."""
    random = Random(seed)
    made = server(
        random.choice(speculations or (algorithm(),)),
        drafts=random.randint(2, 6),
        branches=seed % 2 + 1,
        chunk=random.choice((128, 256)),
        rows=random.choice((2, 4, 8)),
    )

    def loaded() -> ConstrainedServer:
        for _ in range(random.randint(3, 5)):
            for _ in range(random.randint(1, 4)):
                ids = [10 + random.randint(0, 1)] * random.choice((20, 64, 90, 130))
                ids += [5] * random.choice((0, 50, 130)) + [random.randint(100, 900)] * 3
                made.submit(ids, random.choice((1, 9, 50, 90, 140)), grammar=random.random() < 0.8)
            for _ in range(random.randint(1, 30)):
                made.step()
        return made

    error = drained(loaded)
    return made.log, error, made.freed


def alike(seeds: Sequence[int], *speculations: str) -> dict[str, int]:
    """How often stock lives, dies or has wrong states; patched, all live and decide as it."""
    counts = {"freed": 0, "lived": 0, "died": 0, "wrong": 0}
    plays = both((PATCH,), lambda seed: episode(seed, *speculations), seeds, ran=None)
    for seed, (log, error, _), (patched, wrong, freed) in plays:
        require(not wrong, f"{PATCH}, episode {seed}: {wrong}")
        require_same(f"{PATCH}, episode {seed}", log, patched[: len(log)])
        require(bool(error) or len(log) == len(patched), f"{PATCH}, episode {seed}: its length")
        counts["freed"] += freed
        counts["died" if DIES in error else "wrong" if error else "lived"] += 1
    return counts


def random_episodes(inputs: Inputs) -> int:
    """Whatever ends when, no state is wrong, and all is decided as stock does while it lives."""
    counts = alike(inputs(lambda random: random.getrandbits(32), EPISODES))
    require(counts["freed"], f"{PATCH}: no request ended before its verify")
    return EPISODES


CHECKS = {"where stock goes wrong": where_stock_goes_wrong, "random episodes": random_episodes}
