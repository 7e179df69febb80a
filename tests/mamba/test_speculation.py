"""A small Qwen3.5 with NEXTN: prefills, verifies, and prefills behind cached prefixes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.whole_matrix  # two servers that speculate; `test_qwen` has them without a draft
@pytest.mark.parametrize("release", ["0.5.22", "0.5.23"])
def test_replayed_prefills_between_verifies_give_stocks_bits(
    found: Callable[..., Any], release: str
) -> None:
    """Tokens, logits and states of a server with the patch are those of one without graphs."""
    told = found(release, "qwen_spec_jobs", "replies")
    assert told["on tables"] == told["prefills"] > 3
    assert told["cached"] > 0
    assert told["decodes"] > 4
    assert told["tokens"] > 1.2 * told["decodes"]
