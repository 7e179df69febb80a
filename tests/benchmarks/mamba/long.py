"""Looks for a scheduler that hangs: prompts of 100,000 tokens, few rows, the hierarchical cache.

    python tests/benchmarks/mamba/long.py [EPISODES]

That is what sgl-project/sglang#30314 reports. A server of the release's own scheduler, pools,
prefix cache and host pools runs on a CPU without its model, in chunks of 8,192 tokens. Six
conversations of 40,000 to 105,000 tokens go on in turn on a device with KV for 300,800 tokens and
16 to 30 slots; some are aborted. Prints a line for each server: its steps, the longest of them in
seconds, hits on the host, and whether all drained. Run it with the release, its packages and
``src`` on PYTHONPATH.
"""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

from __future__ import annotations

import logging
import sys
import time
import warnings
from random import Random

warnings.simplefilter("ignore")

from tests.proof import lent

lent.lend()

from tests.proof.mamba.hosted_server import Hosted, HostedServer

LONGEST = 105_000
MOST_STEPS = 4000


def main(episodes: int) -> None:
    """Print a line for each server."""
    logging.disable(logging.WARNING)
    for seed in range(episodes):
        for slots in (16, 20, 30):
            for policy in ("write_through", "write_back"):
                print(seed, slots, policy, played(seed, slots, policy), flush=True)


def played(seed: int, slots: int, policy: str) -> str:
    """What came of a server."""
    random = Random(seed)
    server = HostedServer(
        Hosted(
            "unified",
            tracked=True,
            slots=slots,
            tokens=64 * 4700,
            rows=3,
            chunk=8192,
            context=131_072,
            ratio=1.2,
            policy=policy,
        )
    )
    starts = [[random.randint(100, 900) for _ in range(40_000)] for _ in range(3)]
    talks = [list(random.choice(starts)) for _ in range(6)]
    steps, longest = 0, 0.0

    def step() -> None:
        nonlocal steps, longest
        began = time.monotonic()
        server.step()
        steps, longest = steps + 1, max(longest, time.monotonic() - began)

    for _ in range(20):
        talk = random.choice(talks)
        more = random.choice((200, 3000, 25_000))
        talk[:] = (talk + [random.randint(100, 900) for _ in range(more)])[:LONGEST]
        server.submit(list(talk), random.choice((3, 40)))
        for _ in range(random.randint(1, 12)):
            step()
        there = [*server.waiting, *server.running.reqs]
        if there and random.random() < 0.15:
            server.abort(random.choice(there))
    while not server.is_idle() and steps < MOST_STEPS:
        step()
    ended = f"{len(server.waiting)} wait for ever"
    if server.is_idle():
        server.check_drained()
        ended = "drained"
    hits = sum(host > 0 for _, host in server.found.values())
    return f"{steps} steps, the longest {longest:.2f} s, {hits} hits on the host, {ended}"


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["1"])[0]))
