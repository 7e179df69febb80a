"""What an upgrade of sglang would change for the patches: verdicts on two trees, compared.

Nothing is installed or imported; both trees are judged from their source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ..compat.verdict import Verdict

Change = Literal[
    "lost",
    "gained",
    "ours again",
    "becomes built-in",
    "not there",
    "refused too",
    "applies as before",
    "built-in as before",
    "absent as before",
]
UNCHANGED: tuple[Change, ...] = (
    "applies as before",
    "built-in as before",
    "absent as before",
    "refused too",
)
"""The words of `Change` that mean no change."""


@dataclass(frozen=True)
class Prospect:
    """What becomes of one patch.

    Attributes:
        here: the verdict on the installed tree.
        there: the verdict on the other tree.
        change: ``lost``: it applies or is built in here, and is refused there; ``gained``: it
            applies only there; ``ours again``: it is built in here and applies there, as in an
            older release; ``becomes built-in``: upstream has it there; ``not there``: only this
            tree has the code that it changes; ``refused too``: refused there, and refused or absent
            here; the other words: the same verdict on both.
    """

    here: Verdict
    there: Verdict
    change: Change


def compare(here: Iterable[Verdict], there: Iterable[Verdict]) -> list[Prospect]:
    """Pair the verdicts on two trees, which must be in the same order."""
    return [
        Prospect(one, other, _change(one.word, other.word))
        for one, other in zip(here, there, strict=True)
    ]


def lost(prospects: Sequence[Prospect], chosen: Iterable[str]) -> list[str]:
    """The ids of the chosen patches that the other tree would lose."""
    ids_chosen = set(chosen)
    ids = [prospect.here.patch.id for prospect in prospects if prospect.change == "lost"]
    return [id for id in ids if id in ids_chosen]


def conclusion(prospects: Sequence[Prospect], chosen: Iterable[str]) -> str:
    """One sentence: the chosen patches that are lost, and how many patches have each change."""
    gone = lost(prospects, chosen)
    number = Counter(prospect.change for prospect in prospects)
    counts = ", ".join(
        f"{number[word]} {_several(word) if number[word] > 1 else word}"
        for word in get_args(Change)
        if number[word]
    )
    losses = f"chosen, and lost: {', '.join(gone)}" if gone else "no chosen patch is lost"
    return f"{losses} ({counts})"


def _several(word: Change) -> str:
    """The plural of a word."""
    return word.replace("applies", "apply").replace("becomes", "become")


def _change(here: str, there: str) -> Change:
    if there == "absent":
        return "absent as before" if here == "absent" else "not there"
    if there == "refused":
        return "lost" if here in {"applies", "built-in"} else "refused too"
    if there == "built-in":
        return "built-in as before" if here == "built-in" else "becomes built-in"
    if here == "applies":
        return "applies as before"
    return "ours again" if here == "built-in" else "gained"
