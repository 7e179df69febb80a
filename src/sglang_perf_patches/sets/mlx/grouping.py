"""Which requests of a decode step are attended to together: those of like length.

A batch's rows are padded to the longest. Where that is most of what a step reads, short requests
and long ones lie in buffers of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

MARK = "_sglang_perf_patches_groups"
"""On a step's context: the `Patching` of the patch that wants groups. Without it there are none."""

# Tokens of padding, in a layer, that a group of its own must save: it costs some small kernels.
AT_LEAST = 4096
SHARE = 5  # a group must also save one in this many tokens of the joint attention
_SHORTEST_BITS = 9

COUNTS: Counter[str] = Counter()
"""Counts for this process: the decode ``steps`` that were computed in groups."""


def groups_of(lengths: Sequence[int]) -> list[list[int]]:
    """The rows of each group, in the order of their first rows; one group if more don't pay.

    Groups begin at powers of two, so a request that grows seldom changes its group.
    """
    if len(lengths) * max(lengths) - sum(lengths) < AT_LEAST:
        return [[*range(len(lengths))]]
    levels: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        levels.setdefault(max(_SHORTEST_BITS, length.bit_length()), []).append(row)
    groups = [levels[level] for level in sorted(levels)]
    while len(groups) > 1:
        ends = [max(lengths[row] for row in group) for group in groups]
        saved = [
            len(group) * (longer - end)
            for group, end, longer in zip(groups, ends, ends[1:], strict=False)
        ]
        least = min(range(len(saved)), key=saved.__getitem__)
        together = sorted(groups[least] + groups[least + 1])
        if saved[least] >= max(AT_LEAST, len(together) * ends[least + 1] // SHARE):
            break
        groups[least : least + 2] = [together]
    return sorted(groups)
