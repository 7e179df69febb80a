"""Batches of short and long requests equal stock's: bit-equal on a CPU, close elsewhere.

Groups change as requests join, leave and grow, and where stock handles one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import mlx.core as mx

from ...sets.mlx import grouping
from ...sets.mlx.grouping import COUNTS
from ...sets.mlx.kv_arena import body
from .. import Inputs
from ..comparing import require, some
from . import cases, models
from .cases import Step, schedule
from .equivalence import FEW, further_models, near, with_logits
from .rig import Player

PATCH = "mlx.length-groups"

APART = schedule(
    """
    join a 600, join b 9, join c 12, decode abc, chain abc 4, join d 5, chain bdca 3, decode cdba,
    join e 1100, chain bdeca 3, leave b, chain adec 2, leave a, chain dce 4, join f 700, join g 6,
    chain fgdce 2, decode gfdce, leave e, chain fgdc 3, leave f, chain gdc 2
    """
)
"""One long request, then two of different length, next to short ones, in several orders."""

CROSSING = schedule(
    """
    join a 244, join b 249, join c 20, join d 254, chain abcd 20, join e 9, decode ceadb, chain
    ceadb 6, leave d, chain ceab 2
    """
)
"""Requests that grow from one group into the next, one after the other."""

HITTING = schedule(
    """
    join a 100, join b 9, join c 11, chain abc 6, leave a, hit d a 90 3, decode bcd, chain cdb 4,
    leave b, hit e a 70 1, hit f b 12 2, chain decf 5, leave d, decode ecf, chain fec 3
    """
)
"""Prompts whose long or short prefix other requests have left in the pool."""


def lengths(inputs: Inputs) -> int:
    """Scripted and drawn batches of unequal lengths."""
    drawn = inputs(cases.random_lengths)
    return same_groups("float32", [APART, CROSSING, cases.SCRIPTED, cases.FAR, *drawn])


def bfloat16(inputs: Inputs) -> int:
    """The same in the dtype of most models."""
    return same_groups("bfloat16", [CROSSING, *inputs(cases.random_lengths)[:FEW]])


def prefix_hits(inputs: Inputs) -> int:
    """Prompts whose prefix is in the pool, and random episodes."""
    return same_groups("float32", [HITTING, *inputs(cases.random_episodes)], radix=True)


def other_layers(inputs: Inputs) -> int:
    """Models with recurrent states and with sliding windows."""
    schedules = [CROSSING, *inputs(cases.random_lengths)[:1]]
    chosen = some(inputs, further_models())
    return sum(same_groups("float32", schedules, name=name) for name in chosen)


def unproven_device(inputs: Inputs) -> int:
    """On a device treated as unproven, steps are tried before groups serve them."""
    schedules = [cases.GROWING, *inputs(cases.random_lengths)[:1]]
    with mock.patch.object(body, "is_proven", return_value=False):
        return same_groups("float32", schedules, served=False)


@contextmanager
def groups_at(tokens: int) -> Iterator[None]:
    """Use groups if they save so much padding in a layer: the models here are small."""
    with mock.patch.multiple(grouping, AT_LEAST=tokens, _SHORTEST_BITS=5):
        yield


def same_groups(
    dtype: str,
    schedules: Sequence[Sequence[Step]],
    *,
    name: str = "qwen3",
    served: bool = True,
    **options: bool,
) -> int:
    """Run schedules on stock and patched; compare, and check that groups were used."""
    COUNTS.clear()
    with models.model(name, dtype) as model, groups_at(32):

        def played() -> list[tuple[dict[str, Any], list[mx.array]]]:
            return [with_logits(Player(model, **options), each) for each in schedules]

        near(PATCH, model, played, 1 / 100, ran=None)
    require(COUNTS["steps"] or not served, f"{PATCH}: no step was served in groups")
    return len(schedules)


CHECKS = {
    "lengths": lengths,
    "bfloat16": bfloat16,
    "prefix hits": prefix_hits,
    "other layers": other_layers,
    "an unproven device": unproven_device,
}
