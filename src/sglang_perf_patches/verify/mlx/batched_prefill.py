"""Prompts of one batch get stock's logits, tokens and KV: bit-equal on a CPU, close elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ...sets.mlx.batched_prefill.body import COUNTS
from .. import Inputs
from ..comparing import require, some
from . import models
from .batches import Batch, Batches, play
from .equivalence import further_models, near

PATCH = "mlx.batched-prefill"

PART = 1 / 20  # of the largest logit, by which others may differ as the row count selects kernels

SCRIPTED: Batches = (
    [("a", 9, "", 0), ("b", 9, "", 0)],
    [("c", 40, "", 0), ("d", 38, "", 0), ("e", 33, "", 0), ("f", 200, "", 0)],
    # prefixes of one length, of another, and the whole prompt
    [("g", 5, "c", 30), ("h", 6, "d", 30), ("i", 6, "c", 17), ("j", 7, "f", 17), ("k", 0, "c", 40)],
    [("l", 30, "", 0)],
    [(name, 12, "", 0) for name in "mnopqrstuv"],
    # prefixes that are nearly of one length, and none
    [("w", 40, "c", 2), ("x", 40, "d", 1), ("y", 41, "", 0), ("z", 36, "f", 5)],
    [("A", 60, "f", 70), ("B", 66, "f", 64), ("C", 64, "f", 71), ("D", 20, "f", 99)],
)
"""Batches of prompts: name, new tokens, whose prefix from the pool, and how long it is."""


def full_attention(inputs: Inputs) -> int:
    """Scripted and drawn batches, with prefixes from the pool, then decoded together."""
    return same_prompts("float32", [SCRIPTED, *inputs(random_batches)])


def other_weights(inputs: Inputs) -> int:
    """In bfloat16 and in 4 bits."""
    chosen = some(inputs, [False, True])
    return sum(same_prompts("bfloat16", [SCRIPTED], quantized=each) for each in chosen)


def windows(inputs: Inputs) -> int:
    """A model with sliding windows, which computes prefixes again."""
    if "gpt_oss" not in further_models():
        return 0
    return same_prompts("float32", [SCRIPTED, *inputs(random_batches)[:1]], name="gpt_oss")


def recurrent(inputs: Inputs) -> int:
    """A hybrid model, whose prompts continue from the states of their prefixes."""
    return same_prompts("float32", [SCRIPTED, *inputs(random_batches)[:1]], name="qwen3_next")


def random_batches(chance: Random, *, hits: bool = True) -> Batches:
    """Batches of unequal prompts; with `hits` some have prefixes that earlier ones left."""
    batches: list[Batch] = []
    held: list[tuple[str, int]] = []
    for number in range(4):
        batch: Batch = []
        like = chance.choice((3, 17, 60, 130))
        prefix = chance.randint(1, like)
        for at in range(chance.randint(1, 10)):
            name, new = f"r{number}.{at}", max(1, round(like * chance.uniform(0.6, 1.2)))
            hit = prefix + chance.choice((0, 0, 1, 3))
            donors = [donor for donor, length in held if length >= hit]
            if donors and hits and chance.random() < 0.5:
                batch.append((name, new, chance.choice(donors), hit))
            else:
                batch.append((name, new, "", 0))
        held += [(name, new) for name, new, donor, _ in batch if not donor]
        batches.append(batch)
    return tuple(batches)


def same_prompts(
    dtype: str,
    drawn: Sequence[Batches],
    *,
    name: str = "qwen3",
    quantized: bool = False,
    **options: bool,
) -> int:
    """Play batches on stock and patched; compare, and see that prompts were computed together."""
    COUNTS.clear()
    # Stock serves the first group of each kind, which is tried, so the first batches come twice.
    drawn = [drawn[0], *drawn]
    with models.model(name, dtype, quantized=quantized) as model:
        near(PATCH, model, lambda: [play(model, batches, **options) for batches in drawn], PART)
    require(COUNTS["together"], f"{PATCH}: {dict(COUNTS)}")
    require(not COUNTS["unused"] and not COUNTS["failed"], f"{PATCH}: {dict(COUNTS)}")
    return len(drawn)


CHECKS = {
    "full attention": full_attention,
    "other weights": other_weights,
    "windows": windows,
    "recurrent states": recurrent,
}
