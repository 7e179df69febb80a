"""Prefixes that the device gave up are found on the host, with their own KV and states."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest import mock

from sglang_perf_patches.sets.mamba.host_states import (
    GIGABYTE,
    VARIABLE,
    Cells,
    Pools,
    divided,
    kv_bytes,
    state_bytes,
    stock_pools,
)
from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import live, require
from tests.proof.mamba.exhaustion import ACTIONS, act, submit
from tests.proof.mamba.hosted_server import Hosted, HostedServer

PATCH = "mamba.host-states"
PROMPT = 190
"""Tokens of a prompt, in one chunk."""

REPLAYS: tuple[dict[str, Any], ...] = (
    {"tracked": True, "prompts": 22},
    {"tracked": True, "prompts": 22, "gigabytes": 84e-6},
    # Replies are cached too, so there are twice as many states.
    {"tracked": False, "prompts": 12},
)
"""On a device with room for the states of few of the prompts."""

SERVED = 6
"""Drawn episodes of a server: each takes half a second."""

KNOWN = (10, 11)
"""Seeds of episodes in which requests find something on the host, whichever side plays them."""


@contextmanager
def told(tokens_per_state: int) -> Iterator[None]:
    with mock.patch.dict(os.environ, {VARIABLE: str(tokens_per_state)}):
        yield


def replays(_inputs: Inputs) -> int:
    """Prompts that the device has no room for come again: stock finds none, patched all."""
    for options in REPLAYS:
        stock, hits, (theirs, _) = replayed(**options)
        where = f"{PATCH}, {options}"
        require(stock.is_made_of(theirs, 2), f"{where}: stock makes {stock} instead of {theirs}")
        require(not any(hits), f"{where}: stock finds some of them")
        with told(_per_state(**options)), live(PATCH):
            ours, hits, (_, wanted) = replayed(**options)
        require(all(hits), f"{where}: {hits} tokens are found")
        # Both sides round each pool up, by a page and by a slot.
        page, state = 64 * ours.cells.token, ours.cells.state
        most = stock.bytes + page + state
        require(ours.bytes <= most, f"{where}: {ours.bytes} bytes instead of {stock.bytes}")
        require(ours.is_made_of(wanted), f"{where}: {ours} instead of {wanted}")
    return len(REPLAYS)


def random_episodes(inputs: Inputs) -> int:
    """Whatever comes, a request goes on from its own KV and state, and nothing is lost."""
    drawn = [*KNOWN, *inputs(lambda random: random.getrandbits(32), SERVED)]
    hits = 0
    for seed in drawn:
        random = Random(seed)
        shape = drawn_shape(random)
        with told(random.randint(64, 1000)), live(PATCH):
            server = HostedServer(shape)
            for _ in range(ACTIONS):
                submit(server, random)
                act(server, random)
            server.drain()
            server.check_drained()
            sizes = Sizes(server)
            device = (shape.slots, shape.tokens)
            require(sizes.states >= device[0], f"{PATCH}, {shape}: {sizes.states} states")
            require(sizes.tokens >= device[1], f"{PATCH}, {shape}: {sizes.tokens} tokens")
            hits += sum(host > 0 for _, host in server.found.values())
    require(hits, f"{PATCH}: nothing is found on the host")
    return len(drawn)


class Sizes:
    """How many `states` and `tokens` of KV a server's host pools hold, and their bytes."""

    def __init__(self, server: HostedServer) -> None:
        self.cells = Cells(state_bytes(server.pool.mamba_pool), kv_bytes(server.full()))
        self.tokens, self.states = server.host_pools()
        pools = [entry.host_pool for entry in server.tree.host_pool_group.entries]
        self.bytes = sum(int(pool.size) * int(pool.size_per_token) for pool in pools)
        own = self.states * self.cells.state + self.tokens * self.cells.token
        require(own == self.bytes, f"{PATCH}: {own} bytes are counted, stock says {self.bytes}")
        self.page = server.shape.page

    def is_made_of(self, wanted: Pools | None, more: int = 1) -> bool:
        """Whether they are these, rounded up as stock does; it may count the device's first one."""
        if wanted is None:
            return False
        states, tokens = self.states - wanted.states, self.tokens - wanted.tokens
        return 0 <= states <= more and 0 <= tokens <= self.page + 1

    def __str__(self) -> str:
        return f"{self.states} states and {self.tokens} tokens"


Replayed = tuple[Sizes, list[int], tuple[Pools, Pools | None]]


def replayed(*, prompts: int, **options: Any) -> Replayed:
    """Fill a server, and play the same prompts with another last token.

    Its sizes, the tokens that each later prompt finds on the host, what stock and the policy make.
    """
    shape = Hosted("unified", slots=9, tokens=64 * 40, rows=2, **options)
    server = HostedServer(shape)
    for family in range(prompts):
        server.submit(_prompt(family), 3)
        server.drain()
    server.found.clear()
    for family in range(prompts):
        server.submit([*_prompt(family), 9], 3)
        server.drain()
    server.check_drained()
    sizes = Sizes(server)
    device = Pools(shape.slots, shape.tokens)
    stock = stock_pools(sizes.cells, device, shape.ratio, shape.gigabytes)
    total = int(shape.gigabytes * GIGABYTE) or stock.bytes(sizes.cells)
    wanted = divided(sizes.cells, total, device, _per_state(**options))
    return sizes, [host for _, host in server.found.values()], (stock, wanted)


def drawn_shape(random: Random) -> Hosted:
    """A server whose device has slots for what runs, and few more."""
    tracked = random.random() < 0.5
    rows = random.randint(1, 3)
    return Hosted(
        "unified",
        tracked=tracked,
        rows=rows,
        slots=rows * (5 if tracked else 3) + random.randint(1, 4),
        tokens=64 * random.randint(30, 60),
        chunk=random.choice((128, 256)),
        overlap=random.random() < 0.7,
        ratio=random.choice((1.0, 1.5, 2.0, 3.0)),
    )


def _per_state(*, tracked: bool, **_: Any) -> int:
    return PROMPT if tracked else PROMPT // 2


def _prompt(family: int) -> list[int]:
    return [10 + family] * (PROMPT - 60) + [7] * 60


CHECKS = {"replays": replays, "random episodes": random_episodes}
