"""Patches that are taken off while they hold something: they wait, and nothing is lost."""

from typing import Any

import pytest

EACH = pytest.mark.parametrize("release", ["0.5.11", "0.5.23"])


@EACH
def test_a_postponed_write_is_waited_for(found: Any, release: str) -> None:
    """Otherwise later prefix hits read slots of the pool that nobody wrote."""
    of = found(release, "leaving")["postponed"]
    (asked,) = of["asked"]
    assert asked == (
        "mlx.pool-write to be removed: waits until what a prefill has computed is in the pool"
    )
    assert of["afterwards"] == ""
    assert of["mlx.pool-write"] == of["none"]


@EACH
def test_running_requests_are_waited_for(found: Any, release: str) -> None:
    of = found(release, "leaving")["running"]
    # mlx.kv-arena needs mlx.pool-write, which stays with it.
    assert "mlx.kv-arena to be removed: waits until no request's " in of["mlx.kv-arena"]["asked"]
    assert of["mlx.kv-arena"]["afterwards"] == ""
    assert of["mlx.kv-arena"]["played"] == of["none"]["played"]
