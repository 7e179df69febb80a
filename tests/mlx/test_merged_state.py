"""``mlx.merged-state`` beyond its case: a steady batch merges and splits nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Found = Callable[..., Any]


@pytest.mark.parametrize("release", ["0.5.17", "0.5.23"])
def test_a_steady_batch_is_neither_merged_nor_split(found: Found, release: str) -> None:
    nodes = found(release, "state_nodes")
    few, many = nodes["mlx.merged-state 2"], nodes["mlx.merged-state 6"]
    stock = nodes["none 6"]
    # Stock concatenates two recurrent layers with two arrays each.
    assert stock["concatenations"] - many["concatenations"] == 2 * 2
    assert nodes["none 2"]["concatenations"] - few["concatenations"] == 2 * 2
    assert many["all"] < stock["all"]
