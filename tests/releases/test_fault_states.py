"""Four known faults (`faults.known`), reproduced on stock's own code of each release."""

from pathlib import Path
from typing import Any

import pytest

import released
from sglang_perf_patches.faults.known import FAULTS
from sglang_perf_patches.model import releases

pytestmark = pytest.mark.whole_matrix  # all of it is stock's own code

JOBS = Path(__file__).with_name("fault_jobs.py")
NEWEST = releases.KNOWN[-1]
CLOSE = 0.02
"""Rounding of float16 over a prompt."""


def has(name: str, release: str) -> bool:
    (fault,) = (each for each in FAULTS if each.name == name)
    return release in releases.from_spans(fault.releases)


def found(release: str, job: str) -> Any:
    return released.value(released.tree(release), JOBS, job)


def each_of(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("release", names)


@each_of("0.5.9", "0.5.11", "0.5.13", "0.5.17", "0.5.20", "0.5.22", NEWEST)
def test_a_mixed_prefill_leaves_the_states_that_it_claims_unwritten(release: str) -> None:
    states = found(release, "mixed_chunks")
    assert states["claimed"] == [64, 64]
    assert states["unmixed"] == [True, True]
    assert states["written"] == [not has("mixed-chunks-states", release)] * 2


@each_of("0.5.13", "0.5.17", "0.5.19", "0.5.20", NEWEST)
def test_mamba2_keeps_states_of_other_positions(release: str) -> None:
    first, *others = found(release, "mamba2_states")
    assert first < CLOSE
    for other in others:
        assert (other > 10 * CLOSE) if has("mamba2-states", release) else (other < CLOSE)


@each_of("0.5.13", "0.5.14", "0.5.15")
def test_a_short_rest_of_a_cached_prompt_starts_from_nothing(release: str) -> None:
    apart = found(release, "mamba2_cached_prefix")
    assert (apart > 10 * CLOSE) if has("mamba2-cached-prefix", release) else (apart == 0)


@each_of("0.5.14", "0.5.18", "0.5.21", "0.5.22", NEWEST)
def test_a_verify_on_flashinfer_reads_the_first_tokens(release: str) -> None:
    """Not the last 128 of 1,000 tokens and the 4 drafts behind them."""
    assert has("flashinfer-verify-windows", release)
    assert found(release, "verified_window") == [0, 131]
