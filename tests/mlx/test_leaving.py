"""Patches that are taken off while they hold something: they wait, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Found = Callable[..., Any]

EACH = pytest.mark.parametrize("release", ["0.5.11", "0.5.23"])


@EACH
def test_a_postponed_write_is_waited_for(found: Found, release: str) -> None:
    """Otherwise later prefix hits read slots of the pool that nobody wrote."""
    of = found(release, "leaving")["postponed"]
    (asked,) = of["asked"]
    assert asked == (
        "mlx.pool-write to be taken off: waits until what a prefill has computed is in the pool"
    )
    assert of["afterwards"] == ""
    assert of["mlx.pool-write"] == of["none"]


@EACH
def test_running_requests_are_waited_for(found: Found, release: str) -> None:
    for patch, of in found(release, "leaving")["running"].items():
        # mlx.kv-arena needs mlx.pool-write, which stays with it.
        assert f"{patch} to be taken off: waits until no request's " in of["patched"]["asked"] or (
            patch == "mlx.first-buffer" and "the next prompt" in of["patched"]["asked"]
        ), of["patched"]["asked"]
        assert of["patched"]["afterwards"] == "", patch
        assert of["patched"]["played"] == of["none"]["played"], patch


def test_buffers_that_stock_would_not_grow_are_widened_at_the_next_prompt(found: Found) -> None:
    """With steady traffic there is no moment without a request."""
    of = found("0.5.11", "leaving")["small buffers"]
    waits = "mlx.first-buffer to be taken off: waits until the next prompt starts"
    first, second, *more = of["patched"]["said"]
    assert first.startswith(waits)
    assert second.startswith(waits)
    assert more == ["", ""]
    assert of["patched"]["played"] == of["none"]["played"]
    assert of["patched"]["rooms"] == [4096]
