"""What an upgrade of sglang would do to the patches: verdicts on two trees, side by side.

Nothing is installed or imported: both are judged from their source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from .verdict import Verdict

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
"""The changes that are none."""


@dataclass(frozen=True)
class Prospect:
    """What becomes of one patch.

    Attributes:
        here: the verdict on the installed tree.
        there: the verdict on the other one.
        change: ``lost``: refused there, and it applies or is built in here; ``gained``: it applies
            there only; ``ours again``: it applies there, and upstream has it here, as where the
            other tree is an older one; ``becomes built-in``: upstream takes over; ``not
            there``: the code that it is about is here, and not there; ``refused too``: refused
            there, and of no use here either; the others say what both trees have.
    """

    here: Verdict
    there: Verdict
    change: Change


def compare(here: Iterable[Verdict], there: Iterable[Verdict]) -> list[Prospect]:
    """Pair the verdicts of two trees, which come in the same order."""
    return [
        Prospect(one, other, _change(one.word, other.word))
        for one, other in zip(here, there, strict=True)
    ]


def lost(prospects: Sequence[Prospect], chosen: Iterable[str]) -> list[str]:
    """The ids of those patches among `chosen` that the other tree takes away."""
    ids_chosen = set(chosen)
    ids = [prospect.here.patch.id for prospect in prospects if prospect.change == "lost"]
    return [id for id in ids if id in ids_chosen]


def conclusion(prospects: Sequence[Prospect], chosen: Iterable[str]) -> str:
    """The answer in a sentence: which chosen patches are lost, and how many there are of each."""
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
    """The word after a number above one."""
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
