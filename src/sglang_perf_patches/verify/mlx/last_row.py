"""Logits, tokens and sampled tokens equal stock's for each kind of model and of weights."""

from __future__ import annotations

from ...sets.mlx.last_row import COUNTS
from .. import Inputs
from ..comparing import require
from . import cases, models
from .equivalence import episodes, same

PATCH = "mlx.last-row"


def all_models(inputs: Inputs) -> int:
    """Episodes in which some prefill must have been cut."""
    COUNTS.clear()
    compared = episodes(PATCH, inputs)
    require(COUNTS["cut"], f"{PATCH}: {dict(COUNTS)}")
    return compared


def tied_weights(_: Inputs) -> int:
    """A model whose head is its embedding."""
    with models.model("qwen3", "float32", tie_word_embeddings=True) as model:
        return same(PATCH, model, [cases.SCRIPTED])


def sampled(_: Inputs) -> int:
    """Sampled tokens, where the release samples."""
    with models.model("qwen3", "float32") as model:
        return same(PATCH, model, [cases.SCRIPTED], sampling=True)


CHECKS = {"models": all_models, "tied weights": tied_weights, "sampled": sampled}
