"""``mlx.kv-arena`` on 0.5.11: where a buffer ends stock raises, and patched it continues.

Steps that an arena serves need no such buffer; here stock's code decodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.whole_matrix  # of one old release

Found = Callable[..., Any]


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
