"""Each patch that is on by default says why, and what it says is so."""

from __future__ import annotations

import pytest

from sglang_perf_patches import sets
from sglang_perf_patches.model.patch import Patch, by_id
from tests.maintain import ROOT, quotes

PATCHES = by_id(sets.load())
ROWS = quotes.rows(ROOT, sets.NAMES)
MADE_FOR = {
    "mlx.decode-context",
    "mla.sync-opt-out",
    "mla.draft-metadata",
    "mamba.zero-sync",
    "swa.tail-prealloc",
}
"""The upstream changes that the project was made for."""


def test_patches_that_are_on_by_default_have_a_reason_and_no_others() -> None:
    assert {id for id, patch in PATCHES.items() if patch.worth} == {
        id for id, patch in PATCHES.items() if patch.is_default
    }


def test_only_those_that_the_project_was_made_for_are_on_for_that() -> None:
    upstream = {
        id: patch for id, patch in PATCHES.items() if patch.worth and patch.worth.rule == "c"
    }
    assert upstream.keys() == MADE_FOR
    for patch in upstream.values():
        assert patch.worth is not None
        assert patch.worth.because == patch.upstream[0]


@pytest.mark.parametrize("patch", PATCHES.values(), ids=lambda patch: patch.id)
def test_a_measured_gain_is_in_committed_results_of_that_patch(patch: Patch) -> None:
    worth = patch.worth
    if worth is None or worth.rule != "a":
        assert worth is None or not worth.source + worth.row
        return
    row = ROWS[worth.source, worth.row]
    assert patch.id in row.section.on
    numbers = quotes.numbers(worth.because)
    assert [number for number in numbers if quotes.is_in(number, quotes.numbers(row.text))]


def test_a_reason_is_one_line() -> None:
    for patch in PATCHES.values():
        if patch.worth:
            assert 0 < len(patch.worth.because) < 100
            assert not patch.worth.because.endswith(".")
