"""What an upgrade of sglang would change for the patches: verdicts on two trees, compared.

Nothing is installed or imported; both trees are judged from their source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..compat.verdict import Verdict

UNCHANGED = ("refused too", "applies as before", "built-in as before", "absent as before")
"""The changes that are none; ``refused too`` is refused there, and refused or absent here."""

_ORDER = ("lost", "gained", "ours again", "becomes built-in", "not there", *UNCHANGED)


class Prospect(NamedTuple):
    """What becomes of one patch: the verdict on the installed tree, and that on the other tree."""

    here: Verdict
    there: Verdict

    @property
    def change(self) -> str:
        """What the upgrade changes: one of `UNCHANGED`, or one of these.

        ``lost``: it applies or is built in here, and is refused there; ``gained``: it applies only
        there; ``ours again``: it is built in here and applies there, as in an older release;
        ``becomes built-in``: upstream has it there; ``not there``: only this tree has the code that
        it changes.
        """
        here, there = self.here.word, self.there.word
        if there == "refused":
            return "lost" if here in {"applies", "built-in"} else "refused too"
        if here == there:
            return f"{there} as before"
        if there == "applies":
            return "ours again" if here == "built-in" else "gained"
        return "becomes built-in" if there == "built-in" else "not there"


def lost(prospects: Sequence[Prospect], chosen: Collection[str]) -> list[str]:
    """The ids of the chosen patches that the other tree would lose."""
    ids = [prospect.here.patch.id for prospect in prospects if prospect.change == "lost"]
    return [id for id in ids if id in chosen]


def conclusion(prospects: Sequence[Prospect], chosen: Collection[str]) -> str:
    """One sentence: the chosen patches that are lost, and how many patches have each change."""
    gone = lost(prospects, chosen)
    number = Counter(prospect.change for prospect in prospects)
    counts = []
    for word in _ORDER:
        several = word.replace("applies", "apply").replace("becomes", "become")
        if number[word]:
            counts.append(f"{number[word]} {several if number[word] > 1 else word}")
    losses = f"chosen, and lost: {', '.join(gone)}" if gone else "no chosen patch is lost"
    return f"{losses} ({', '.join(counts)})"
