"""Schedules of requests: what joins, leaves and decodes, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Any

Step = tuple[Any, ...]
"""One of

- ``("join", request, prompt length)``,
- ``("hit", request, donor, prefix, more)``: a prompt that begins with `prefix` tokens of a request
  that has left, read from the pool; only with the radix cache,
- ``("extend", request, tokens)``: more prompt for a running request: with the radix cache, as the
  next chunk of a long prompt; without it, also after it has decoded,
- ``("leave", request)``,
- ``("drop", request)``: the request leaves and its decoded tokens do not enter the pool, as after a
  retraction,
- ``("clear", "")``: the scheduler's caches are cleared, as by ``/flush_cache``; the runner removes
  requests only afterwards,
- ``("decode", requests)``,
- ``("chain", requests, steps)``: steps, each built before the previous one is read."""


def schedule(text: str) -> tuple[Step, ...]:
    """The steps that a text names, with commas between: ``join a 5, decode ab, chain ab 3``."""
    steps = (step.split() for step in text.split(","))
    return tuple(
        (kind, who, *(int(word) if word.isdigit() else word for word in words))
        for kind, who, *words in steps
    )


SCRIPTED = schedule(
    """
    join a 5, decode a, join b 23, decode ab, join c 24, join d 24, decode abcd, chain dbca 4,
    leave b, decode acd, decode cd, leave a, chain cd 3, join b 6, decode bcd, leave c, leave d,
    decode b, join a 7, chain ab 12, join c 40, decode abc, decode b, decode abc
    """
)
"""Batches of one, of equal and of unequal lengths, which exceed a windowed layer's window."""

GROWING = schedule(
    """
    join a 9, join b 9, chain ab 70, join c 150, decode abc, chain cab 75, leave c, chain ba 3
    """
)
"""Equal and unequal lengths that exceed a buffer; then the longest request leaves."""

EXTENDING = schedule(
    """
    join a 9, join b 12, chain ab 3, extend a 4, decode ab, chain ba 3, extend b 1, extend a 4,
    decode ba
    """
)
"""Requests that get more prompt while they decode in a batch."""

CROSSING = schedule(
    """
    join a 250, decode a 4, chain a 8, join b 254, join c 200, chain bc 6, chain abc 3, leave a,
    join d 700, chain d 80, decode dbc, leave d, join e 3, chain ecb 60
    """
)
"""Prompts and decode steps of single and batched requests that cross 256 and 768 tokens."""

TALKING = schedule(
    """
    join a 20, decode a 5, leave a, hit b a 25 12, chain b 6, join x 9, chain bx 7, leave b, hit
    c b 50 3, chain xc 4, leave c, hit d c 40 9, decode d 2, leave d, hit e d 51 4, decode e 2,
    hit f c 57 2, chain fe 3
    """
)
"""A conversation of several turns, one of which restarts at an earlier point, and another
request next to it."""

THINKING = schedule(
    """
    join a 40, decode a 45, leave a, hit b a 40 9, join x 9, chain bx 40, leave b, hit c b 49 6,
    extend c 20, decode cx 50, leave c, hit d c 75 3, chain d 3, leave d, hit e d 60 5, decode e 2
    """
)
"""A conversation whose replies are longer than `models.WINDOW` and not in the next prompt. One of
its prompts is in two chunks, and it restarts at an earlier point."""

FAR = schedule(
    """
    join a 600, join b 9, join c 12, chain abc 4, join d 5, chain bdca 3, leave a, chain bdc 3
    """
)
"""One long request next to short ones."""

CHANGING = schedule(
    """
    join a 9, join b 9, chain ab 3, leave a, join c 12, decode bc, leave b, join d 5, decode cd,
    chain cd 70, leave c, join e 6, chain de 2, decode d, chain ed 60, join f 150, decode df,
    decode ef, decode df, chain def 3
    """
)
"""A batch of two that changes repeatedly, with rows that have room and with full ones."""

SETTLING = (
    *schedule(
        """
        join a 9, join b 9, join c 30, join d 5, join e 9, join f 12, chain abcd 3, leave a,
        decode bcde, decode cdef, decode fedc, leave c, join a 17, decode defa, decode efab,
        chain efab 3, decode fabd, decode abdf, decode b, extend a 4, chain abdf 2, decode fdb,
        decode dbf
        """
    ),
    *schedule("decode fab, decode baf") * 50,
    *schedule(
        """
        chain dabf 3, decode adbf, decode adbf, leave d, decode abf, decode fba, leave f, decode
        abe, leave b, chain ea 3
        """
    ),
)
"""A batch of three or four that changes at every step, stays the same, and changes again."""

HITTING = schedule(
    """
    join a 12, join b 9, chain ab 6, leave a, hit c a 16 3, decode bc, chain cb 4, leave b, hit
    d b 14 1, hit e a 17 0, chain dec 5, leave d, leave c, hit f c 20 3, decode ef
    """
)
"""Prompts whose prefix other requests decoded in a batch."""


def batched_steps(schedule: Sequence[Step]) -> int:
    """How many of its decode steps are of two or more requests."""
    decodes = (step for step in schedule if step[0] in {"decode", "chain"})
    return sum(step[2] if len(step) > 2 else 1 for step in decodes if len(step[1]) > 1)


def random_schedule(chance: Random) -> tuple[Step, ...]:
    """Joins, leaves, extensions and decode steps, in random order within the batch."""
    return _drawn(chance, ("join", "leave", "decode", "decode", "chain", "extend"))


def random_hits(chance: Random) -> tuple[Step, ...]:
    """Like `random_schedule`, with prompt prefixes that other requests left in the pool."""
    return _drawn(chance, ("join", "leave", "decode", "decode", "chain", "hit"))


def random_lengths(chance: Random) -> tuple[Step, ...]:
    """Requests of very unequal lengths join, leave, grow and are reordered."""
    return _drawn(chance, ("join", "join", "leave", "decode", "chain"), longest=500)


def random_episodes(chance: Random) -> tuple[Step, ...]:
    """With the radix cache: prompts in chunks, prefix hits, aborts, and cleared caches."""
    kinds = ("join", "hit", "extend", "leave", "drop", "decode", "decode", "chain", "clear")
    return _drawn(chance, kinds, longest=60, in_chunks=True)


def _drawn(
    chance: Random, kinds: Sequence[str], *, longest: int = 33, in_chunks: bool = False
) -> tuple[Step, ...]:
    """Some steps of these kinds, each drawn where it is possible.

    `in_chunks`: prompts are extended only until their requests decode, by more, and so are hits;
    the last request may leave.
    """
    steps, most, chained = (28, 5, 7) if in_chunks else (24, 6, 5)
    names = (f"r{number}" for number in count())
    held: dict[str, int] = {}
    left: dict[str, int] = {}
    growing: set[str] = set()
    schedule: list[Step] = []
    while len(schedule) < steps:
        kind = chance.choice(kinds)
        extensible = sorted(growing if in_chunks else held)
        if kind == "join" and len(held) < most:
            who = next(names)
            held[who] = chance.choice((1, 2, 9, 9, 17, longest))
            growing.add(who)
            schedule.append(("join", who, held[who]))
        elif kind == "hit" and len(held) < most and left:
            who, donor = next(names), chance.choice(sorted(left))
            prefix = chance.randint(1, left[donor])
            further = chance.choice((0, 1, 5, 40) if in_chunks else (0, 1, 5))
            held[who] = prefix + further
            growing.add(who)
            schedule.append(("hit", who, donor, prefix, further))
        elif kind == "extend" and extensible:
            who = chance.choice(extensible)
            further = chance.choice((1, 4, 33) if in_chunks else (1, 4))
            held[who] += further
            schedule.append(("extend", who, further))
        elif kind in {"leave", "drop"} and len(held) > (not in_chunks):
            who = chance.choice(sorted(held))
            length = held.pop(who)
            growing.discard(who)
            if kind == "leave":
                left[who] = length
            schedule.append((kind, who))
        elif kind in {"decode", "chain"} and held:
            batch = chance.sample(sorted(held), chance.randint(1, len(held)))
            taken = chance.randint(2, chained) if kind == "chain" else 1
            for who in batch:
                held[who] += taken
            growing.difference_update(batch)
            schedule.append((kind, batch, taken))
        elif kind == "clear" and chance.random() < 0.2:
            for requests in (held, left, growing):
                requests.clear()
            schedule.append(("clear", ""))
    return tuple(schedule)


def random_changes(chance: Random) -> tuple[Step, ...]:
    """Phases in which the batch changes at every step, with steady phases in between."""
    names = (f"r{number}" for number in count())
    schedule: list[Step] = []
    batch: list[str] = []

    def join() -> None:
        batch.append(next(names))
        schedule.append(("join", batch[-1], chance.choice((1, 9, 9, 17, 33))))

    for _ in range(chance.randint(3, 5)):
        join()
    for _ in range(6):
        schedule.append(("chain", list(batch), chance.randint(1, 4)))
        for _ in range(chance.randint(1, 5)):
            change = chance.choice(("replace", "reorder", "extend", "single", "fewer"))
            if change == "replace":
                schedule.append(("leave", batch.pop(chance.randrange(len(batch)))))
                join()
            elif change == "reorder":
                chance.shuffle(batch)
            elif change == "extend":
                schedule.append(("extend", chance.choice(batch), chance.choice((1, 4))))
            elif change == "single":
                schedule.append(("decode", [chance.choice(batch)]))
            fewer = len(batch) - (change == "fewer")
            schedule.append(("decode", chance.sample(batch, fewer) if fewer > 2 else list(batch)))
    return tuple(schedule)
