"""What an upgrade of sglang would do to the patches: verdicts on two trees, side by side.

Nothing is installed or imported: both are judged from their source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .verdict import Verdict

Change = Literal["stays", "becomes built-in", "lost", "gained", "off in both", "nothing to do"]


@dataclass(frozen=True)
class Prospect:
    """What becomes of one patch.

    Attributes:
        here: the verdict on the installed tree.
        there: the verdict on the other one.
        change: ``stays``: it applies, or upstream has it, before and after; ``becomes built-in``:
            upstream takes over; ``lost``: it applies or is built in here, and is refused there;
            ``gained``: it applies there only; ``off in both``: refused before and after;
            ``nothing to do``: the code that it is about is not there.
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
    wanted = set(chosen)
    ids = [prospect.here.patch.id for prospect in prospects if prospect.change == "lost"]
    return [id for id in ids if id in wanted]


def _change(here: str, there: str) -> Change:
    if there == "absent":
        return "nothing to do"
    if there == "refused":
        return "lost" if here in {"applies", "built-in"} else "off in both"
    if there == "built-in":
        return "stays" if here == "built-in" else "becomes built-in"
    return "stays" if here in {"applies", "built-in"} else "gained"
