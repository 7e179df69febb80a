"""The mamba patches on the released code: the same values, without a wait.

Each release here stands for a group with identical code (but for 0.5.12, 0.5.22 and post releases,
whose definitions a variant shares with their neighbours').
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Found = Callable[[str], Any]

OLD = ("0.5.9", "0.5.10.post1")
"""Without upstream's change of 0.5.11."""
OWN_LISTS = ("0.5.21", "0.5.23")
"""Whose batches carry the host's lists themselves."""
RELEASES = (
    *OLD,
    *("0.5.11", "0.5.13", "0.5.14", "0.5.15.post1", "0.5.16"),
    *("0.5.17", "0.5.18", "0.5.19", "0.5.20"),
    *OWN_LISTS,
)
LAYERS = 2
EACH = pytest.mark.parametrize("release", RELEASES)

STOCK_WAITS = {"0.5.9": 3 * LAYERS + 14, "0.5.10.post1": 3 * LAYERS + 12} | dict.fromkeys(
    OWN_LISTS, 4
)
"""Of a tracked forward; 14 up to 0.5.16 and 13 up to 0.5.20."""


def stock_waits(release: str) -> int:
    if release in STOCK_WAITS:
        return STOCK_WAITS[release]
    return 14 if RELEASES.index(release) <= RELEASES.index("0.5.16") else 13


def selections(release: str) -> tuple[str, ...]:
    return ("mamba", "mamba.track-mask") if release in OLD else ("mamba",)


@EACH
def test_outputs_and_states_are_the_same_to_the_bit(found: Found, release: str) -> None:
    results = found(release)
    stock = results["stock"]["forwards"]
    assert all(scenario["finite"] for scenario in stock.values())
    outputs = [digest for scenario in stock.values() for digest in scenario["outputs"]]
    assert len(set(outputs)) == len(outputs) == 6 * LAYERS  # else equality would say nothing
    for selection in selections(release):
        for name, scenario in results[selection]["forwards"].items():
            for kind in ("outputs", "states"):
                assert scenario[kind] == stock[name][kind], (selection, name, kind)


@EACH
def test_a_forward_does_not_wait(found: Found, release: str) -> None:
    results = found(release)
    for name, scenario in results["mamba"]["forwards"].items():
        assert scenario["waits"] == {}, name
    assert {"mamba.zero-sync"} <= set(results["mamba"]["ran"])


@EACH
def test_stock_waits_as_often_as_the_counter_is_right(found: Found, release: str) -> None:
    """Else a count of zero would say nothing."""
    waits = {
        name: sum(scenario["waits"].values())
        for name, scenario in found(release)["stock"]["forwards"].items()
    }
    assert waits["half"] == stock_waits(release)
    assert waits["no mask"] == (5 if release == "0.5.9" else 3)
    assert waits["none"] >= waits["no mask"]


@pytest.mark.parametrize("release", OLD)
def test_track_mask_alone_asks_once_a_forward(found: Found, release: str) -> None:
    """Its own query for the rows takes the place of the layers' three each."""
    results = found(release)
    waits = results["mamba.track-mask"]["forwards"]["half"]["waits"]
    assert sum(waits.values()) == stock_waits(release) - 3 * LAYERS + 1
    assert max(waits.values()) <= 2
    assert results["mamba.track-mask"]["ran"] == ["mamba.track-mask"]


@pytest.mark.parametrize("release", OLD)
def test_upstreams_names_are_there(found: Found, release: str) -> None:
    results = found(release)
    newest = found("0.5.11")["stock"]["names"]
    for selection in ("mamba", "mamba.track-mask"):
        assert results[selection]["names"] == newest
    assert set(results["stock"]["names"].values()) == {"missing"}
    assert set(results["stock again"]["names"].values()) == {"missing"}


@EACH
def test_metadata_is_the_same_for_any_batch(found: Found, release: str) -> None:
    results = found(release)
    stock = results["stock"]["metadata"]
    assert len(stock) > 100
    tracked = sum(plan["fields"]["track_conv_indices"] is not None for plan in stock)
    assert 50 < tracked < len(stock)
    for selection in selections(release):
        for number, (plan, expected) in enumerate(
            zip(results[selection]["metadata"], stock, strict=True)
        ):
            assert plan["fields"] == expected["fields"], (selection, number)
            assert plan["chunks"] == expected["chunks"], (selection, number)
            if release not in OLD:
                assert plan["own"] == expected["own"], (selection, number)
    assert {plan["waits"] for plan in results["mamba"]["metadata"]} == {0}


@EACH
def test_unknown_batches_are_left_to_stock(found: Found, release: str) -> None:
    results = found(release)
    stock = results["stock"]["fallbacks"]
    for name, plan in results["mamba"]["fallbacks"].items():
        assert plan["fields"] == stock[name]["fields"], name
        assert plan["chunks"] == stock[name]["chunks"], name
    for name in ("tensors", "half", "relabelled", "longer"):
        # On the old releases mamba.track-mask still serves it, and asks for the rows itself.
        own = int(release in OLD)
        assert results["mamba"]["fallbacks"][name]["waits"] == stock[name]["waits"] + own, name
    # The lengths are known, what is tracked is not.
    for name in ("padded", "exchanged"):
        assert 0 < results["mamba"]["fallbacks"][name]["waits"] < stock[name]["waits"], name
    assert results["mamba"]["fallbacks"]["mixed"]["waits"] == 0


@pytest.mark.parametrize("release", [r for r in RELEASES if r != "0.5.23"])
def test_the_schedulers_own_batch_is_known(found: Found, release: str) -> None:
    """In 0.5.23 the scheduler's parts are elsewhere, and no patch changes them."""
    results = found(release)
    stock, patched = results["stock"]["scheduled"], results["mamba"]["scheduled"]
    assert stock["mask"] == [True, False, True, True]
    assert patched["known"] == patched["mask"] == stock["mask"]
    assert (stock["known"] is None) == (release not in OWN_LISTS)
    for kind in ("fields", "chunks", "seqlens"):
        assert patched[kind] == stock[kind], kind
    assert patched["waits"] == 0 < stock["waits"]


@EACH
def test_mamba2_chunks_are_the_same_without_a_wait(found: Found, release: str) -> None:
    results = found(release)
    stock = results["stock"]["mamba2"]
    assert {made["prefix"] for made in stock} == {True, False}
    for made, expected in zip(results["mamba"]["mamba2"], stock, strict=True):
        assert made["chunks"] == expected["chunks"]
        assert made["rest"] == expected["rest"]
        if made["prefix"]:
            saved = expected["waits"] - made["waits"]
            assert saved == 5 * (made["requests"] - 1) + 2
    assert "mamba.mamba2-chunk-indices" in results["mamba"]["ran"]


@EACH
def test_flashinfers_plan_is_the_same_without_a_wait(found: Found, release: str) -> None:
    results = found(release)
    stock = results["stock"]["flashinfer"]
    has_it = RELEASES.index(release) >= RELEASES.index("0.5.17")
    assert (stock is not None) == has_it
    if not has_it:
        assert results["mamba"]["states"]["mamba.flashinfer-plan"] == "absent"
        return
    assert max(made["waits"] for made in stock) == 4
    for made, expected in zip(results["mamba"]["flashinfer"], stock, strict=True):
        assert made["plan"] == expected["plan"]
        assert made["error"] == expected["error"]
        assert made["waits"] == 0
    assert "mamba.flashinfer-plan" in results["mamba"]["ran"]


@EACH
def test_the_debug_variable_names_both_sides(found: Found, release: str) -> None:
    said = found(release)["mamba"]["debug"]
    assert said.pop("right") == ""
    for name, message in said.items():
        assert message.startswith(f"{name}: the host has ["), name
        assert "the device [" in message


@EACH
def test_deactivated_is_stock(found: Found, release: str) -> None:
    results = found(release)
    again = results["stock again"]
    for part in ("metadata", "fallbacks", "mamba2", "flashinfer", "names", "scheduled"):
        assert again[part] == results["stock"][part], part
    assert again["ran"] == []
