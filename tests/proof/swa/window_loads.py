"""Loads of a `window_server`: prompts beyond the window, prefixes that come back, small pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from tests.proof.swa.window_models import WORDS
from tests.proof.swa.window_server import WindowServer

FIRST = 3
"""The first word of prompts: those before it are special ones."""


def words(seed: int, count: int) -> list[int]:
    draw = Random(seed)
    return [draw.randrange(FIRST, WORDS) for _ in range(count)]


@dataclass(frozen=True)
class Load:
    """Rounds of prompts, and how many tokens they get; each is sent when the last was served."""

    rounds: Sequence[Sequence[tuple[list[int], int]]]

    def play(self, server: WindowServer) -> None:
        for asked in self.rounds:
            for ids, new in asked:
                server.submit(ids, new)
            server.serve()


_BASE = words(0, 300)
LONG = Load(
    (
        ((_BASE[:200], 40), (_BASE[200:250], 20)),
        # A longer prompt, an unlike one, one that leaves the first within its last window.
        ((_BASE[:250], 40), (words(1, 40), 20), ([*_BASE[:199], 7, 8, 9], 12)),
        ((_BASE, 2),),
    )
)
"""Prompts of up to 9 windows in up to 5 chunks; hits of prefixes whose windows are kept."""

SHORT = Load((((_BASE[:100], 4), (_BASE[200:230], 6)), ((_BASE[:120], 4),)))
"""Of three windows."""


@dataclass(frozen=True)
class Pressed:
    """A load that pools are too small for."""

    page: int
    tokens: int
    ratio: float  # of the window pool's tokens to the full pool's
    # Of each request its prompt, how many tokens it is to get, and the step before which it comes.
    asked: Sequence[tuple[list[int], int, int]] = field(repr=False)
    aborted: dict[int, int]  # number of a request → the step before which its client is gone
    more: dict[str, Any]

    @property
    def server(self) -> dict[str, Any]:
        return {
            "page_size": self.page,
            "max_total_tokens": self.tokens,
            "swa_full_tokens_ratio": self.ratio,
            **self.more,
        }

    @property
    def alone(self) -> dict[str, Any]:
        """Arguments of a server that has room, and no prefix cache."""
        return {"page_size": self.page, "max_total_tokens": 4096, "disable_radix_cache": True}

    def play(self, server: WindowServer) -> None:
        happens: dict[int, list[Any]] = {}
        for number, (ids, new, at) in enumerate(self.asked):
            happens.setdefault(at, []).append(partial(server.submit, ids, new, rid=f"r{number}"))
        for number, at in self.aborted.items():
            happens.setdefault(at, []).append(partial(server.abort, f"r{number}"))
        last = max(happens)

        def comes(round_: int) -> bool:
            for each in happens.get(round_, ()):
                each()
            return round_ < last

        server.serve(comes)

    def answers(self, server: WindowServer) -> dict[str, list[int]]:
        for number, (ids, new, _) in enumerate(self.asked):
            server.submit(ids, new, rid=f"r{number}")
            server.serve()
        return {rid: server.tokens(rid) for rid in server.reqs}


def drawn(random: Random) -> Pressed:
    """Any load; of a pool of windows that holds four of them at least."""
    page = random.choice((1, 1, 16, 64))
    stems = [words(random.randrange(1000), 260) for _ in range(2)]
    asked = []
    longest = random.choice((60, 220))
    for _ in range(random.randint(5, 10)):
        stem = random.choice(stems)
        ids = [*stem[: random.randint(1, longest)], *words(random.randrange(1000), 5)]
        asked.append((ids, random.randint(1, 80), random.randint(0, 20)))
    aborted = {}
    if random.random() < 0.4:
        number = random.randrange(len(asked))
        aborted[number] = asked[number][2] + random.randint(0, 25)
    more: dict[str, Any] = {"schedule_conservativeness": random.choice((0.0, 0.0, 1.0))}
    more["disable_overlap_schedule"] = random.random() < 0.5
    if random.random() < 0.2:
        more["disable_radix_cache"] = True
    # Stock admits nothing to a window pool that is smaller than a chunk, a window and two pages.
    small = page < 64
    tokens = random.choice((320, 384, 448) if small else (640, 704))
    return Pressed(page, tokens, random.choice((0.5, 0.6, 0.8)), asked, aborted, more)
