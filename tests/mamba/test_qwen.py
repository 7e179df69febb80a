"""A small Qwen3.5 with experts, a multimodal model: text, images, and drafts by NEXTN."""

from typing import Any

import pytest

pytestmark = pytest.mark.whole_matrix  # two servers each, in Triton's interpreter

EACH = pytest.mark.parametrize("release", ["0.5.22", "0.5.23"])


@EACH
def test_text_gets_stocks_replies(found: Any, release: str) -> None:
    """Eager, from stock's prefill graphs and from the patch's: tokens and logits are the same."""
    told = found(release, "qwen_jobs", "replies")
    assert told["rows"] > 8
    # Each bucket is captured on tables, and each prefill is replayed from them.
    assert told["on tables"] == told["prefills"] + told["buckets"]


@EACH
def test_a_broken_patch_changes_replies(found: Any, release: str) -> None:
    assert found(release, "qwen_jobs", "broken").startswith("broken: result['")


@pytest.mark.parametrize(
    "names", ["no-radix-cache mixed-chunks", "tracked-states sessions priorities"]
)
@EACH
def test_other_features_get_stocks_replies(found: Any, release: str, names: str) -> None:
    told = found(release, "qwen_jobs", "with_features", names=names)
    assert set(names.split()) <= set(told["on"])
    assert told["on tables"] > 2


@EACH
def test_images_get_stocks_replies(found: Any, release: str) -> None:
    told = found(release, "qwen_jobs", "with_images")
    assert told["on tables"] == told["prefills"] > 2
    assert told["cached"] > 0


@EACH
def test_replayed_prefills_between_verifies_give_stocks_bits(found: Any, release: str) -> None:
    """Tokens, logits and states of a server with the patch are those of one without graphs."""
    told = found(release, "qwen_spec_jobs", "replies")
    assert told["on tables"] == told["prefills"] > 3
    assert told["cached"] > 0
    assert told["decodes"] > 4
    assert told["tokens"] > 1.2 * told["decodes"]
