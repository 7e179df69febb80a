"""The first three known faults (`faults.known`), reproduced on stock's own code of each release."""

from __future__ import annotations

import pytest
from conftest import Found

from sglang_perf_patches.faults.known import FAULTS
from sglang_perf_patches.model import releases

NEWEST = releases.KNOWN[-1]
CLOSE = 0.02
"""Rounding of float16 over a prompt."""


def has(name: str, release: str) -> bool:
    """Whether the data says that a release has a fault."""
    (fault,) = (each for each in FAULTS if each.name == name)
    return release in releases.from_spans(fault.releases)


def each_of(*names: str) -> pytest.MarkDecorator:
    """These releases; by default only the newest of them that has the fault."""
    *others, shown = names
    whole = [pytest.param(each, marks=pytest.mark.whole_matrix) for each in others]
    return pytest.mark.parametrize("release", [*whole, shown])


@each_of("0.5.9", "0.5.11", "0.5.13", "0.5.17", "0.5.20", NEWEST, "0.5.22")
def test_a_mixed_prefill_leaves_the_states_that_it_claims_unwritten(
    found: Found, release: str
) -> None:
    states = found(release, "fault_jobs", "mixed_chunks")
    assert states["claimed"] == [64, 64]
    assert states["unmixed"] == [True, True]
    assert states["written"] == [not has("mixed-chunks-states", release)] * 2


@each_of("0.5.13", "0.5.17", "0.5.20", NEWEST, "0.5.19")
def test_mamba2_keeps_states_of_other_positions(found: Found, release: str) -> None:
    first, *others = found(release, "fault_jobs", "mamba2_states")
    assert first < CLOSE
    for other in others:
        assert (other > 10 * CLOSE) if has("mamba2-states", release) else (other < CLOSE)


@each_of("0.5.13", "0.5.15", "0.5.14")
def test_a_short_rest_of_a_cached_prompt_starts_from_nothing(found: Found, release: str) -> None:
    apart = found(release, "fault_jobs", "mamba2_cached_prefix")
    assert (apart > 10 * CLOSE) if has("mamba2-cached-prefix", release) else (apart == 0)
