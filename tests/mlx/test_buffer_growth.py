"""``mlx.kv-arena`` on 0.5.11: where a buffer ends stock raises, and patched it continues.

Steps that an arena serves need no such buffer; here stock's code decodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sglang_perf_patches.judge import downloads, source
from sglang_perf_patches.sets.mlx.references import ATTENTION

Found = Callable[..., Any]


@pytest.mark.whole_matrix  # thousands of tokens
def test_stock_raises_when_a_batched_decode_crosses_4096_tokens(found: Found) -> None:
    stock = found("0.5.11", "crossing_4096")["stock"]
    assert stock["buffer"] == 4096
    assert "[concatenate]" in stock["raised"]


@pytest.mark.whole_matrix
def test_patched_it_gives_the_logits_of_a_release_that_grows(found: Found) -> None:
    """0.5.15 is the first release that grows, with code that 0.5.17 keeps."""
    digests = []
    for release in ("0.5.15", "0.5.17"):
        tree = source.Tree(source.find(downloads.tree(release)))
        for name in ("write_token", "_grow"):
            definition = tree.definition(f"{ATTENTION}.{name}")
            assert definition is not None
            digests.append(definition.digest)
    assert digests[:2] == digests[2:]

    patched = found("0.5.11", "crossing_4096")["stock's code"]
    assert "steps" not in patched["counts"]
    (played,) = patched["played"]
    assert max(len(tokens) for tokens in played["tokens"].values()) > 4096 + 1
    assert patched["played"] == found("0.5.17", "crossing_4096")["stock"]["played"]


def test_many_requests_that_grow_give_what_wide_buffers_give(found: Found) -> None:
    many = found("0.5.11", "small_buffers")["many"]
    assert "[concatenate]" in many["stock"]["raised"]
    assert "steps" not in many["patched"]["counts"]
    assert many["patched"]["played"] == many["wide"]["played"]
    assert many["all patched"]["played"] == many["wide"]["played"]


def test_equal_lengths_are_wrong_without_an_error_in_stock_and_right_when_patched(
    found: Found,
) -> None:
    """All of stock's layers then miss the newest token alike, and nothing is left to raise."""
    equal = found("0.5.11", "small_buffers")["equal lengths"]
    assert equal["stock"]["played"] != equal["wide"]["played"]
    assert equal["patched"]["played"] == equal["wide"]["played"]
