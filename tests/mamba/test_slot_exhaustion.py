"""``mamba.slot-exhaustion`` on the released code: where stock dies the patched server goes on."""

from typing import Any

import pytest

import tiers
from matrix import applying, before, newest_of_each_group

pytestmark = pytest.mark.newest


RELEASES = newest_of_each_group("mamba")
EACH = pytest.mark.parametrize("release", RELEASES)
HOSTED = tuple(each for each in RELEASES if not before(each, "0.5.17"))
OTHERS = ("drafting", "late", "hosted", "sending")
"""Episodes with drafts, lazy tracking, the hierarchical cache, and of prefill servers."""
ALONE = {"mamba.slot-exhaustion", "mamba.host-states", "mamba.freed-rows"}
"""The patch itself, and two that go live only on servers where it is gated: the last with NGRAM,
or up to 0.5.16 with EAGLE."""
ASSERTED = {
    "alloc",
    "_alloc_ping_pong_buffer",
    "_alloc_mamba_slot",
    "prepare_for_caching_req",
    "cache_unfinished_req",
    "_match_post_processor",
    "finalize_match_result",
    "finalize_match_result_in_cache",
    "prepare_load_back",
}
"""The functions in which stock's scheduler dies, in all releases."""


def _kinds(release: str) -> list[list[Any]]:
    trees = ["radix" if before(release, "0.5.16") else "unified"]
    return [[tree, tracked] for tracked in (True, False) for tree in trees]


def _where(release: str, load: str, kind: list[Any]) -> str:
    """The function in which stock dies of a load."""
    tree, tracked = kind
    old = before(release, "0.5.13")
    if load == "short_of_copies":
        if tree == "radix":
            return "_match_post_processor"
        moved = not before(release, "0.5.17")
        return "finalize_match_result_in_cache" if moved else "finalize_match_result"
    if tracked:
        return "alloc" if old else "_alloc_ping_pong_buffer"
    if old:
        return "cache_unfinished_req" if tree == "radix" else "prepare_for_caching_req"
    return "_alloc_mamba_slot"


def _require_served(each: dict[str, Any]) -> None:
    """The patched server lives, decides as stock does until that dies, and serves each request."""
    assert not each["patched"], each
    assert each["same"], each
    assert each["served"], each


@EACH
def test_stock_dies_and_the_patched_server_goes_on(found: Any, release: str) -> None:
    """Each assertion is reached, and until then both decide and hold the same."""
    deaths = found(release, "slots_jobs", "deaths")
    assert [each["kind"] for each in deaths] == 2 * _kinds(release)
    for each in deaths:
        message, where = each["stock"]
        assert where == _where(release, each["load"], each["kind"]), each
        assert where in ASSERTED
        assert "alloc mamba cache" in message or "Not enough space for mamba" in message
        _require_served(each)


@EACH
def test_a_request_goes_without_the_state_that_keeps_it_out(found: Any, release: str) -> None:
    """The slot of the prefix that it matches is all that it lacks, and the server is idle."""
    for stock, patched, ended in found(release, "slots_jobs", "own_prefixes"):
        assert "alloc mamba cache" in stock or "Not enough space for mamba" in stock
        assert not patched
        assert ended == ["r0", "r1"]


@EACH
def test_a_request_that_lacks_kv_gives_its_slot_back(found: Any, release: str) -> None:
    """0.5.9 leaves it the slot, which was counted on; later schedulers take it back themselves."""
    for each in found(release, "slots_jobs", "kept_slots"):
        _, where = each["stock"]
        assert (where == "alloc") == (release == "0.5.9"), each
        _require_served(each)
        assert each["kept"][1] is None, each


@EACH
def test_an_idle_server_says_what_a_request_waits_for(found: Any, release: str) -> None:
    """Once; and the request is served as soon as its slot can be had."""
    waits = found(release, "slots_jobs", "waits")
    assert len(waits) == 1
    for each in waits:
        assert each["stock"].startswith("Not enough space for mamba")
        assert each["waiting"] == ["r0"]
        (line,) = each["said"]
        assert line.startswith("Request r0 waits: it needs 3 state slots"), line
        assert "2 slots 2 can be had" in line
        assert each["waited"], each
        (line,) = each["said of locks"]
        assert "it needs 1 state slots" in line
        assert "1 slots 0 can be had" in line
        assert each["served"], each


@EACH
def test_random_episodes(found: Any, slot_episodes: int, release: str) -> None:
    """Stock's outcome where stock lives, no death where it dies, and whole pools at the end."""
    counts = dict(found(release, "slots_jobs", "episodes", count=slot_episodes))
    assert sum(counts.values()) == slot_episodes
    assert counts.pop("lived") > slot_episodes // 4
    assert not counts.pop("kept a slot", 0) or release == "0.5.9"
    assert counts, "stock dies in some"
    assert set(counts) <= ASSERTED


@pytest.mark.whole_matrix
@pytest.mark.parametrize("draw", OTHERS)
@pytest.mark.parametrize("release", ["0.5.17", "0.5.20", "0.5.23"])
def test_episodes_of_other_servers(found: Any, slot_episodes: int, release: str, draw: str) -> None:
    counts = dict(found(release, "slots_jobs", "episodes", count=slot_episodes, draw=draw))
    assert sum(counts.values()) == slot_episodes
    assert counts.pop("lived") > slot_episodes // 5
    assert counts, "stock dies in some"
    assert set(counts) <= ASSERTED


def test_slots_of_other_servers_are_counted_as_stock_takes_them(found: Any) -> None:
    """Lazy tracking, and states that come back from the host."""
    for draw, counts in found("0.5.23", "slots_jobs", "few_episodes").items():
        assert sum(counts.values()) > counts["lived"] > 0, draw


@pytest.mark.parametrize("release", HOSTED)
def test_with_a_host_stock_dies_and_the_patched_server_goes_on(found: Any, release: str) -> None:
    """Of the loads in reports, and where a state has no slot to come back to."""
    deaths = {each["load"]: each for each in found(release, "slots_jobs", "hosted_deaths")}
    where = {name: each["stock"][1] for name, each in deaths.items()}
    assert where["chunks_backed_up"] == "_alloc_mamba_slot"
    assert where["short_of_loads"] == "prepare_load_back"
    for each in deaths.values():
        _require_served(each)


@pytest.mark.parametrize("release", HOSTED)
def test_a_load_that_is_called_off_leaves_no_empty_state(found: Any, release: str) -> None:
    """Stock goes on behind the prefix that the device has, with the state of no token."""
    stock, patched = found(release, "slots_jobs", "called_off")
    assert stock == "r4 goes on after 64 tokens with another state"
    assert patched == 64


def test_a_request_whose_state_is_loaded_stays_out_as_in_stock(found: Any) -> None:
    """0.5.17 loads it, then refuses the request: the chunk is full. Its slots are not counted."""
    assert found("0.5.17", "slots_jobs", "episodes", count=1, draw="hosted", first=244)


@EACH
def test_with_the_other_patches(found: Any, request: pytest.FixtureRequest, release: str) -> None:
    """With each default patch, and with all: the same, and requests that lack KV among others."""
    others = [name for name in applying("mamba", release) if name not in ALONE]
    selections = (*((name,) for name in others), *([tuple(others)] if len(others) > 1 else ()))
    count = 20 if tiers.is_whole(request.config) else 2
    counts = found(release, "slots_jobs", "together", selections=selections, seed=5000, count=count)
    assert sum(counts.values()) == count * len(selections)


@pytest.mark.whole_matrix
@pytest.mark.parametrize("release", ["0.5.9", "0.5.12.post1", "0.5.16", "0.5.20", "0.5.23"])
def test_a_broken_patch_is_found(found: Any, release: str) -> None:
    for name, error in found(release, "slots_jobs", "broken").items():
        assert error.startswith("different: "), (name, error)


@pytest.mark.whole_matrix
def test_a_broken_part_for_other_servers_is_found(found: Any) -> None:
    errors = found("0.5.23", "slots_jobs", "broken_for_others")
    assert errors["loads"] == "Cannot alloc mamba for load_back"
    assert errors["copies"] == "r4 goes on after 64 tokens with another state"
    assert "episode" in errors["late buffers"]
