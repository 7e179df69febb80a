"""``mlx.kv-arena`` where stock's code decodes: equal logits, and shared things are made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.newest

Found = Callable[..., Any]

CASES = [
    (release, model)
    for release, models in {
        "0.5.11": ("qwen3 float32", "qwen3 bfloat16"),
        "0.5.17": ("qwen3 float32", "qwen3 bfloat16", "qwen3_next float32"),
        "0.5.23": ("qwen3 float32", "qwen3 bfloat16", "qwen3_next float32", "gpt_oss float32"),
    }.items()
    for model in models
]
EACH = pytest.mark.parametrize(("release", "model"), CASES)


def attention_layers(model: str) -> int:
    """Of the four layers; the others of that model keep a recurrent state."""
    return 2 if model.startswith("qwen3_next") else 4


@EACH
def test_every_forward_pass_gives_the_same_logits(found: Found, release: str, model: str) -> None:
    of_model = found(release, "equivalence")[model]
    stock = of_model["stock"]["played"]
    assert of_model["patched"]["played"] == stock
    assert of_model["again"]["played"] == stock
    assert of_model["state"]["state"] == "live"
    assert of_model["state"]["ran"]
    # Otherwise equal hashes would say nothing.
    assert len({digest for played in stock for digest in played["logits"]}) > 50


@EACH
def test_padding_is_made_once_a_step(found: Found, release: str, model: str) -> None:
    """Of four requests three are shorter than the longest, two of them by the same length."""
    of_model = found(release, "equivalence")[model]
    layers = attention_layers(model)
    assert of_model["stock"]["counted"]["Full"] == 2 * 3 * layers
    assert of_model["patched"]["counted"]["Full"] == 2
    assert of_model["again"]["counted"] == of_model["stock"]["counted"]


@EACH
def test_the_mask_is_made_once_a_step(found: Found, release: str, model: str) -> None:
    """Stock keeps it itself from 0.5.18 on, as a boolean mask that allows no selection."""
    of_model = found(release, "equivalence")[model]
    stock, patched = of_model["stock"]["counted"], of_model["patched"]["counted"]
    if release == "0.5.23":
        windows = 2 if model.startswith("gpt_oss") else 1
        assert patched["Less"] == stock["Less"] == windows
        assert patched.get("Select") == stock.get("Select")
    else:
        assert stock["Select"] == stock["GreaterEqual"] == attention_layers(model)
        assert patched["Select"] == patched["GreaterEqual"] == 1


@pytest.mark.parametrize("release", ["0.5.23"])
def test_windowed_layers_share_padding_of_their_own(found: Found, release: str) -> None:
    """Beyond the window, a windowed layer pads by less than one with full attention."""
    of_model = found(release, "equivalence")["gpt_oss float32"]
    # Lengths 5, 20, 31 and 12 and one new token: full attention pads three of them, by 26, 11
    # and 19; with a window of 16 two of them are shorter than it, by 10 and 3.
    assert of_model["stock"]["counted long"]["Full"] == 2 * (2 * 3 + 2 * 2)
    assert of_model["patched"]["counted long"]["Full"] == 5


@EACH
def test_a_patch_that_shares_nothing_is_noticed(found: Found, release: str, model: str) -> None:
    of_model = found(release, "equivalence")[model]
    assert of_model["never shared"]["counted"] == of_model["stock"]["counted"]


@EACH
def test_a_patch_that_shares_too_long_is_noticed(found: Found, release: str, model: str) -> None:
    of_model = found(release, "equivalence")[model]
    assert of_model["kept too long"].get("played") != of_model["stock"]["played"]


@pytest.mark.parametrize("release", ["0.5.11", "0.5.17"])
def test_a_mask_of_the_right_shape_from_another_step_is_noticed(found: Found, release: str) -> None:
    for of_model in found(release, "equivalence").values():
        assert "raised" not in of_model["kept too long by shape"]
        assert of_model["kept too long by shape"]["played"] != of_model["stock"]["played"]
