"""Episodes of a hybrid model's server with few slots for states, on stock and patched.

Each is drawn from a seed: requests come, with shared prefixes and without, run, are retracted and
aborted. Where stock lives, both sides decide and hold the same, step by step. Where it dies they do
until then, and the patched server goes on and drains. 0.5.9 can leave a waiting request with a
slot, and the patch gives that back: there both do the same until stock first does so.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from random import Random
from typing import Any

from sglang_perf_patches.verify import Different
from sglang_perf_patches.verify.comparing import both, require, require_same
from tests.proof.mamba.hosted_server import Hosted, HostedServer
from tests.proof.mamba.hybrid_parts import Shape, trees
from tests.proof.mamba.hybrid_server import HybridServer

PATCH = "mamba.slot-exhaustion"

DEATHS = (
    "Can not alloc mamba cache",
    "Not enough space for mamba cache",
    "Not enough space for mamba ping pong idx",
    "Cannot alloc mamba for load_back",
)
"""The beginnings of the messages with which stock's scheduler dies if no slot is left."""

ACTIONS = 14
"""Further requests of an episode, after the first ones."""


@dataclass
class Told:
    """What came of an episode; `died` is the message of stock's assertion, `where` its function."""

    log: list[Any]
    died: str = ""
    where: str = ""
    slot_kept: int | None = None


def shape(random: Random) -> Shape:
    """A server with few slots, and a cache of any kind that the release has."""
    tracked = random.random() < 0.5
    slots = random.randint(3 if tracked else 1, 14)
    return Shape(
        tree=random.choice(trees()),
        tracked=tracked,
        slots=slots,
        tokens=64 * random.choice((24, 40, 200)),
        rows=min(random.choice((1, 2, 4, 8)), slots),  # stock never has more rows
        chunk=random.choice((128, 256)),
        overlap=random.random() < 0.7,
    )


def drafting(random: Random) -> Shape:
    """The same with drafts, whichever way states are tracked."""
    drawn = shape(random)
    lazy = drawn.tracked and random.random() < 0.5
    branches = random.choice((1, 1, 2))
    return replace(drawn, drafts=random.randint(2, 6), lazy=lazy, branches=branches)


def late(random: Random) -> Shape:
    """The same with states that are tracked in a second buffer when it is needed."""
    drawn = shape(random)
    return replace(drawn, tracked=True, lazy=True, slots=max(drawn.slots, 3))


def sending(random: Random) -> Shape:
    """The same as a prefill server, whose requests hold their slots until their KV was sent."""
    return replace(shape(random), transfer=random.choice((1, 3, 10)))


def hosted(random: Random) -> Shape:
    """Any of these with a hierarchical cache whose copies take their time."""
    drawn = random.choice((shape, drafting, late))(random)
    return Hosted(
        **asdict(drawn),
        ratio=random.choice((1.0, 1.5, 3.0)),
        policy=random.choice(("write_through", "write_through", "write_back")),
        delay=random.choice((0, 1, 3, 10)),
    )


def served(asked: Shape) -> HybridServer:
    return HostedServer(asked) if isinstance(asked, Hosted) else HybridServer(asked)


Draw = Callable[[Random], Shape]


def play(seed: int, more: Sequence[int] = (), draw: Draw = shape) -> Told:
    """Play an episode: the same one for a seed, as long as the server decides the same."""
    random = Random(seed)
    server = served(draw(random))
    try:
        for _ in range(random.randint(2, 6)):
            submit(server, random, more)
        for _ in range(ACTIONS):
            act(server, random, more)
    except AssertionError as error:
        return _death(server, error)
    return drained(server)


_once = cache(play)
"""Only for stock: a patch that is broken in several ways is compared with the same episodes."""


def short_of_rows(tree: str, tracked: bool) -> HybridServer:
    """More requests at once than there are slots."""
    server = HybridServer(Shape(tree, tracked, slots=9))
    for number in range(4):
        server.submit([10 + number] * 100 + [7] * 50, 5)
    server.submit([10] * 100 + [9] * 300, 3)
    return server


def short_of_copies(tree: str, tracked: bool) -> HybridServer:
    """A request matches a prefix, and no slot is left for the copy of its state."""
    server = HybridServer(Shape(tree, tracked, slots=5 if tracked else 2, rows=2))
    server.submit([11] * 128, 1)
    server.drain()  # its state is cached, in one slot
    if tracked:
        server.submit([12] * 128, 20)  # it takes all other slots, and locks what it cached
        server.step()
        server.step()
    else:
        server.submit([11] * 128 + [12] * 70, 3)  # it takes the other slot, and locks the first
    server.submit([11] * 128 + [13] * 70, 3)
    return server


def short_of_its_prefix(tree: str, tracked: bool) -> HybridServer:
    """All slots are a request's, but for the one with the state of the prefix that it matches."""
    server = HybridServer(Shape(tree, tracked, slots=3 if tracked else 1, rows=1))
    server.submit([11] * 128, 1)
    server.drain()
    server.submit([11] * 128 + [12] * 70, 3)
    return server


def short_of_tokens(tree: str, tracked: bool) -> HybridServer:
    """KV keeps out a request whose match took a slot of theirs; 0.5.9 leaves that with it."""
    slots, tokens, new = (7, 1024, 440) if tracked else (4, 512, 120)
    server = HybridServer(Shape(tree, tracked, slots, tokens, rows=4))
    server.submit([11] * 128, 1)
    server.drain()  # its state is cached
    server.submit([11] * 128 + [12] * (tokens // 4), 20)
    server.step()
    server.step()  # it runs, and locks what it cached
    for number in range(1 if tracked else 2):
        server.submit([13 + number] * 30, 2)
    server.submit([11] * 128 + [15] * 70, new)
    return server


def chunks_backed_up() -> HybridServer:
    """sgl-project/sglang#36770: all cached states are on their way to the host."""
    server = served(Hosted("unified", tracked=True, slots=4, rows=1, chunk=128, delay=20))
    server.submit([11] * 600, 5)
    return server


def short_of_loads() -> HybridServer:
    """A request's state is on the host, and a running request has all slots."""
    server = served(Hosted("unified", tracked=False, slots=2, rows=2))
    server.submit([11] * 128, 1)
    server.drain()
    server.submit([12] * 128, 20)
    server.step()
    server.step()
    server.submit([11] * 128 + [13] * 70, 3)
    return server


def short_of_the_last_state() -> HybridServer:
    """One slot can be had, and loading a state takes two; a shorter one is on the device."""
    server = served(Hosted("unified", tracked=False, slots=4, rows=2))
    for prompt in ([11] * 128, [12] * 128, [11] * 64):
        server.submit(prompt, 1)
        server.drain()
    server.submit([13] * 128, 20)
    server.step()
    server.step()
    server.submit([11] * 128 + [14] * 70, 3)
    return server


HOSTED = (chunks_backed_up, short_of_loads)


def drained(server: HybridServer) -> Told:
    try:
        server.drain()
    except AssertionError as error:
        return _death(server, error)
    server.check_drained()
    return Told(server.log, slot_kept=server.slot_kept)


def alike(
    seeds: Sequence[int],
    others: Sequence[str] = (),
    more: tuple[int, ...] = (),
    draw: Draw = shape,
) -> Counter[str]:
    """Play episodes on stock and with these patches too; how often stock lived, and died where."""
    counts: Counter[str] = Counter()
    patches = (PATCH, *others)
    plays = both(
        patches,
        lambda each: play(each, more, draw),
        seeds,
        ran=None,
        stock=lambda each: _once(each, more, draw),
    )
    for seed, expected, actual in plays:
        where = f"{', '.join(patches)}, episode {seed}"
        require(not actual.died, f"{where}: it dies in {actual.where}: {actual.died}")
        require(actual.slot_kept is None, f"{where}: a request waits with a slot")
        kept = expected.slot_kept is not None
        log = expected.log[: expected.slot_kept]
        require_same(where, log, actual.log[: len(log)])
        ended = expected.died or kept or len(actual.log) == len(log)
        require(ended, f"{where}: stock drains after fewer steps")
        counts[expected.where or ("kept a slot" if kept else "lived")] += 1
    return counts


def _death(server: HybridServer, error: AssertionError) -> Told:
    if isinstance(error, Different) or not str(error).startswith(DEATHS):
        raise error
    where = traceback.extract_tb(error.__traceback__)[-1].name
    return Told(server.log, str(error), where, server.slot_kept)


def submit(server: HybridServer, random: Random, more: Sequence[int] = ()) -> None:
    family, shared = random.randint(0, 2), random.choice((0, 64, 130, 200))
    unique = random.choice((1, 17, 64, 100, 300))
    ids = [10 + family] * shared
    ids += [random.randint(100, 900) for _ in range(unique)]
    server.submit(ids, random.choice((1, 2, 5, 20, 70, *more)))


def act(server: HybridServer, random: Random, more: Sequence[int] = ()) -> None:
    match random.choice(("submit", "submit", "run", "run", "run", "abort", "retract")):
        case "submit":
            for _ in range(random.randint(1, 3)):
                submit(server, random, more)
        case "abort":
            requests = [*server.waiting, *server.running.reqs]
            if requests:
                server.abort(random.choice(requests))
                server.check_slots()
        case "retract":
            if len(server.running.reqs) > 1:
                server.retract()
                server.check_slots()
        case _:
            for _ in range(random.randint(1, 12)):
                server.step()
