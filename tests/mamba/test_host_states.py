"""``mamba.host-states`` on the released code: whom it serves, and that what is broken is found."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import size_pools
from matrix import applying, newest_of_each_group
from sglang_perf_patches.model.errors import OperatorError
from sglang_perf_patches.sets.mamba.host_states import (
    VARIABLE,
    Cells,
    Pools,
    divided,
    stock_pools,
)

PATCH = "mamba.host-states"
RELEASES = tuple(each for each in newest_of_each_group("mamba") if PATCH in applying("mamba", each))
EACH = pytest.mark.parametrize("release", RELEASES)
SIZES = st.integers(1, 1 << 20)


@EACH
def test_only_what_was_played_is_served(found: Any, release: str) -> None:
    gates = found(release, "host_jobs", "parts")["gates"]
    served = {"served", "by gigabytes", "layers of a third kind"}
    for name, each in gates.items():
        assert each["state"] == ("live" if name in served else "gated"), (name, each)
        assert each["same"] is (name not in served), (name, each)
    reasons = {name: each["reason"] for name, each in gates.items()}
    assert "TOKENS_PER_STATE is not given" in reasons["not told"]
    assert "no number above 0" in reasons["no number"]
    assert "no number above 0" in reasons["zero"]
    assert "another write policy" in reasons["written back"]
    assert "backend than the tested one" in reasons["a direct copy"]
    assert "smaller than the device's" in reasons["a small host"]


@EACH
def test_each_server_of_a_process_gets_its_own_sizes(found: Any, release: str) -> None:
    together, alone = found(release, "host_jobs", "parts")["after_each_other"]
    assert together == alone
    assert alone[0] != alone[1]


@pytest.mark.whole_matrix
@EACH
def test_a_broken_patch_is_found(found: Any, release: str) -> None:
    for name, error in found(release, "host_jobs", "broken").items():
        assert error.startswith("different: "), (name, error)


@given(SIZES, SIZES, SIZES, SIZES, st.integers(1, 1 << 16), st.floats(1, 8))
def test_the_host_is_divided_as_prefixes_need_it(
    state: int, token: int, slots: int, tokens: int, per_state: int, ratio: float
) -> None:
    cells, device = Cells(state, token), Pools(slots, tokens)
    stock = stock_pools(cells, device, ratio, 0)
    total = stock.bytes(cells)
    ours = divided(cells, total, device, per_state)
    assert ours is not None
    assert ours.bytes(cells) <= total
    assert total - ours.bytes(cells) < token
    assert ours.states >= slots
    assert ours.tokens >= tokens
    if ours.states > slots and ours.tokens > tokens + state // token:
        # Neither pool is at its least, so prefixes of this length use up both.
        assert ours.states * per_state <= ours.tokens
        assert (ours.states + 1) * per_state * token >= (ours.tokens * token) - state
        assert size_pools.prefixes(ours, per_state, 1) >= size_pools.prefixes(stock, per_state, 1)


@pytest.mark.parametrize("context", [600, 4096, 16_384, 100_000])
def test_the_answer_says_what_more_prefixes_fit_with(context: int) -> None:
    cells = Cells(state=66_000_000, token=20_480)
    tree: Any = SimpleNamespace(version="0.5.23")
    for of_host in ({"hicache_ratio": 2}, {"hicache_size": 90}):
        server = size_pools.Server(34, 64, context, **of_host)
        slots = size_pools.stock_slots(cells, server.available)
        device = size_pools.line("", 5, slots, cells, server).pools
        _, *lines = size_pools.host(tree, cells, device, server).splitlines()
        stock, few, more = (
            [int(cell.replace(",", "")) for cell in line.split()[:4]] for line in lines
        )
        assert few[2] >= stock[2]
        assert more[3] >= stock[3]
        tokens = context // -(-context // 8192)
        assert f"{VARIABLE}={tokens} SGLANG_PERF_PATCHES=all,mamba.host-states" in lines[1]
        tree_before: Any = SimpleNamespace(version="0.5.21")
        with pytest.raises(OperatorError, match=r"unknown how 0\.5\.21 divides"):
            size_pools.host(tree_before, cells, device, server)


def test_a_host_smaller_than_the_device_is_stocks() -> None:
    cells, device = Cells(10, 1), Pools(10, 100)
    assert divided(cells, device.bytes(cells) - 1, device, 10) is None
    assert divided(cells, device.bytes(cells), device, 10) == device
