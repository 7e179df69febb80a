"""The mamba patches on the released code: equal values, and how often they wait for the device."""

from types import SimpleNamespace
from typing import Any

import pytest

from matrix import applying, before, newest_of_each_group
from sglang_perf_patches import sets
from sglang_perf_patches.model.patch import by_id
from sglang_perf_patches.model.releases import from_spans
from sglang_perf_patches.sets.mamba.lightning_rows import _kept

OLD = ("0.5.9", "0.5.10.post1")
"""Without upstream's change of 0.5.11."""
OWN_LISTS = ("0.5.21", "0.5.22", "0.5.23")
"""Releases whose batches carry the host's lists."""
DECODES = ("decode", "decode, none")
"""Kinds of decodes among the forwards that `jobs.forwards` counts."""
CAPTURED = ("0.5.22", "0.5.23")
"""Releases that can capture the prefill of a linear layer."""
RELEASES = newest_of_each_group("mamba")
EACH = pytest.mark.parametrize("release", RELEASES)


def each_in_depth(test: Any) -> Any:
    return pytest.mark.newest(EACH(test))


def stock_waits(release: str, layers: int) -> int:
    """Waits of a tracked forward."""
    if release in OLD:
        return 3 * layers + (14 if release == "0.5.9" else 12)
    if release in OWN_LISTS:
        return 4
    return 14 if before(release, "0.5.17") else 13


@EACH
def test_every_patch_gives_what_stock_gives(proved: Any, shown: Any, release: str) -> None:
    """Bit by bit; and what should not wait does not, where stock does."""
    expected = {"mamba.mamba2-chunk-indices", "mamba.slot-exhaustion"}
    if release in OLD:
        expected |= {"mamba.zero-sync"}
    if not before(release, "0.5.10.post1"):
        expected |= {"mamba.lightning-rows"}
    if release in from_spans("0.5.13 … 0.5.21"):
        expected |= {"mamba.freed-rows"}
    if release in CAPTURED:
        expected |= {"mamba.gdn-prefill-graph", "mamba.host-states"}
    patches = applying("mamba", release)
    assert set(patches) == expected
    for patch, line in proved(release, shown("mamba", release, patches, RELEASES)).items():
        assert line.get("compared", 0) > 0, (patch, line)


@each_in_depth
def test_stock_waits_as_often_as_the_counter_is_right(found: Any, release: str) -> None:
    """Otherwise a count of zero would say nothing."""
    results = found(release, "jobs", "passes")
    waits = {name: sum(places.values()) for name, places in results["stock"]["forwards"].items()}
    assert waits["half"] == stock_waits(release, results["layers"])
    assert waits["no mask"] == (5 if release == "0.5.9" else 3)
    assert waits["none"] >= waits["no mask"]
    asks = 0 if release in OLD else 1
    assert (waits["decode, none"], waits["decode"]) == (asks, 2 * asks)
    assert set(results["mamba"]["forwards"]) == set(waits)
    here = dict(results["mamba"]["forwards"])
    if release not in OLD:
        assert here == results["stock"]["forwards"]
        assert results["mamba"]["states"]["mamba.zero-sync"] == "built-in"
        return
    for name in (*DECODES, "no mask"):  # stock's
        assert here.pop(name) == results["stock"]["forwards"][name]
    # No layer asks: three times a layer if rows are tracked, twice if none is.
    spared = {name: waits[name] - sum(places.values()) for name, places in here.items()}
    assert spared == {"half": 3 * results["layers"], "none": 2 * results["layers"]}
    assert "mamba.zero-sync" in results["mamba"]["ran"]


@each_in_depth
def test_unknown_batches_are_left_to_stock(found: Any, release: str) -> None:
    results = found(release, "jobs", "passes")
    assert results["mamba"]["fallbacks"] == results["stock"]["fallbacks"]


@each_in_depth
def test_mamba2_metadata_does_not_wait(found: Any, release: str) -> None:
    results = found(release, "jobs", "passes")
    stock = results["stock"]["mamba2"]
    assert {forward["prefix"] for forward in stock} == {True, False}
    for forward, expected in zip(results["mamba"]["mamba2"], stock, strict=True):
        chunks = 5 * (forward["requests"] - 1) + 2 if forward["prefix"] else 0
        assert expected["waits"] == 1 + chunks
        assert forward["waits"] == 0
    assert "mamba.mamba2-chunk-indices" in results["mamba"]["ran"]


@each_in_depth
def test_the_debug_variable_names_both_sides(found: Any, release: str) -> None:
    answer = found(release, "jobs", "passes")["mamba"]["debug"]
    assert answer.pop("right") == ""
    for name, message in answer.items():
        assert message.startswith(f"{name}: the host has ["), name
        assert "the device [" in message


def test_what_is_kept_of_a_forward_is_its_own_batchs() -> None:
    """Lightning layers compute it once, and again if the same metadata comes with another batch."""
    metadata, made = SimpleNamespace(), list[str]()

    def make(batch: str) -> str:
        made.append(batch)
        return f"rows of {batch}"

    kept = [_kept(metadata, "by rows", batch, make) for batch in ("one", "one", "other", "other")]
    assert kept == ["rows of one", "rows of one", "rows of other", "rows of other"]
    assert made == ["one", "other"]


@each_in_depth
def test_memory_is_pinned_where_stock_pins_it(found: Any, release: str) -> None:
    assert found(release, "jobs", "passes")["mamba"]["pins"] == [True, False]


@EACH
def test_nothing_of_ours_runs_when_a_decode_is_prepared(release: str) -> None:
    """Replayed graphs read nothing of it, so it would cost every step for nothing."""
    patches = by_id(sets.load())
    targets = {
        target
        for id in applying("mamba", release)
        for variant in patches[id].variants
        if release in variant.releases
        for target in variant.targets
    }
    assert targets
    assert not [target for target in targets if "decode" in target.rpartition(":")[2].lower()]


@each_in_depth
def test_deactivated_is_stock(found: Any, release: str) -> None:
    results = found(release, "jobs", "passes")
    again = results["stock again"]
    for part in ("forwards", "fallbacks", "mamba2"):
        assert again[part] == results["stock"][part], part
    assert again["ran"] == []


@pytest.mark.whole_matrix  # many forwards in Triton's interpreter
@EACH
def test_a_broken_patch_is_found(found: Any, release: str) -> None:
    errors = found(release, "jobs", "broken")
    tracks_lightning = not before(release, "0.5.13")
    captures = 3 * (release in CAPTURED)
    of_zero_sync = 2 * (release in OLD)
    assert len(errors) == 2 + of_zero_sync + tracks_lightning + captures
    for name, outcome in errors.items():
        assert outcome.startswith("different: "), (name, outcome)
    if release in OLD:
        assert "waits at" in errors["no answers"]
