"""Episodes of a prefix cache that is full: what comes, goes and is touched, drawn beforehand."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from tests.proof.swa.prefix_trees import KINDS, POLICIES, Ask, PrefixTree, Shape

PAGES = {"full": (1, 16), "window": (1, 16), "states": (1, 64)}
"""Page sizes that are played of each kind of cache; pages of states are tracked in 64 tokens."""
UNSERVED = ("mru",)
"""Orders that the patch leaves to stock."""


class Episode(NamedTuple):
    """A cache, and what happens to it: names of methods of `PrefixTree` with their arguments."""

    shape: Shape
    acts: list[tuple[str, tuple[Any, ...]]]


def episode(random: Random, policies: tuple[str, ...] = (*POLICIES, *UNSERVED)) -> Episode:
    """Draw one: requests that share prefixes, stay or end, and now and then a flush."""
    kind = random.choice(KINDS)
    page = random.choice(PAGES[kind])
    pages = random.randint(100, 300) if page == 1 else random.randint(20, 70)
    shape = Shape(
        kind=kind,
        page=page,
        tokens=pages * page,
        window=random.choice((4, 16, 40)) * (page if page > 1 else 1),
        window_tokens=pages * page * 3 // 4,
        states=random.randint(2, 8),
        policy=random.choice(policies),
        bigrams=random.random() < 0.3,
    )
    longest = page * pages // 6
    known: list[tuple[int, ...]] = [()]
    acts: list[tuple[str, tuple[Any, ...]]] = []
    for _ in range(random.randint(10, 50)):
        match random.choice(("request",) * 5 + ("match", "match", "end", "end", "evict", "rare")):
            case "request":
                begun = random.choice(known)
                tokens_behind = random.randint(1, max(2, longest))
                ids = begun[: random.randint(0, len(begun))]
                ids += tuple(random.randint(0, 3) for _ in range(tokens_behind))
                known.append(ids)
                ask = Ask(
                    ids,
                    extra_key=random.choice((None, None, None, "adapter")),
                    priority=random.randint(0, 2),
                    stays=random.random() < 0.3,
                    behind=random.randint(0, 3),
                )
                acts.append(("request", (ask,)))
            case "match":
                acts.append(("match", (Ask(random.choice(known)),)))
            case "end":
                acts.append(("end", (random.randint(0, 7),)))
            case "evict":
                most = random.choice((1, longest, shape.tokens))
                tokens = random.randint(0, most), random.randint(0, most)
                acts.append(("evict", (*tokens, random.randint(0, 2))))
            case _:
                if random.random() < 0.2:
                    acts.append(("flush", ()))
    return Episode(shape, acts)


def play(wanted: Episode) -> list[Any]:
    """What came of each act, and what there was after it."""
    tree = PrefixTree(wanted.shape)
    return [(getattr(tree, name)(*words), tree.told()) for name, words in wanted.acts]


def crowded(leaves: int, policy: str = "lru", tokens: int = 4) -> PrefixTree:
    """A cache with so many leaves of so many tokens, and no free slot."""
    tree = PrefixTree(Shape(tokens=leaves * tokens, policy=policy))
    for number in range(leaves):
        first = number * tokens
        tree.request(Ask(tuple(range(first, first + tokens))))
    return tree
