"""The words of the "works with" columns: README's, `gains.md`'s and those of ``doctor -- COMMAND``.

They follow from what a patch, and each patch that it requires, was proven with
(`Patch.proven_with`), so no column is written by hand.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..model.patch import Patch

ONE = "1 GPU"
WORDS: Mapping[str, str] = {
    "TP": "tensor-parallel",
    "MTP": "eagle",
    "EP": "expert-parallel",
    "DP attention": "dp-attention",
    "hierarchical cache": "hierarchical-cache",
}
"""Word → feature (see `model.setups`)."""


def works_with(patches: Mapping[str, Patch], *ids: str) -> tuple[str, ...]:
    """The words for patches that are on together; `ONE` comes first.

    Args:
        patches: every patch, by id.
        ids: of those that are on.
    """
    each = [patches[name] for one in ids for name in (one, *patches[one].requires)]
    return (
        ONE,
        *(
            word
            for word, feature in WORDS.items()
            if all(one.proven_with is None or feature in one.proven_with for one in each)
        ),
    )
