"""The mla patches on the released code: what the kernels read is the same bit by bit.

The project's own proof, ``sglang_perf_patches.proof.mla``, shows that, with inputs from hypothesis.
``check_*.py`` check that the work is gone, and what is left to stock. Both run in a process of each
release; a release stands for a group with identical code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_perf_patches import sets
from sglang_perf_patches.judge import downloads, source, verdict
from sglang_perf_patches.sets.mla.draft_extend_graph import scales

Checked = Callable[[str, tuple[str, ...]], dict[str, Any]]
Shown = Callable[..., tuple[str, ...]]

RELEASES = (
    *("0.5.9", "0.5.10.post1", "0.5.11", "0.5.12.post1"),
    *("0.5.13.post1", "0.5.14", "0.5.15", "0.5.15.post1", "0.5.16"),
    *("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
)
PATCHES = tuple(patch.id for patch in sets.declared("mla").patches)


@cache
def applying(release: str) -> tuple[str, ...]:
    """The patches that apply to a release."""
    tree = source.Tree(source.find(downloads.tree(release)))
    mla = [found for found in sets.load() if found.name == "mla"]
    return tuple(
        found.patch.id for found in verdict.judge_each(mla, tree) if found.word == "applies"
    )


@pytest.mark.parametrize("release", RELEASES)
def test_kernels_read_the_same_to_the_bit(checked: Checked, shown: Shown, release: str) -> None:
    patches = shown("mla", release, applying(release), RELEASES)
    lines = {id: line for id, (line, _) in checked(release, patches).items()}
    assert all(line.get("compared", 0) > 0 for line in lines.values()), lines


@pytest.mark.parametrize("release", RELEASES)
def test_the_work_is_gone_and_exceptions_are_left_to_stock(
    checked: Checked, shown: Shown, release: str
) -> None:
    patches = shown("mla", release, applying(release), RELEASES)
    errors = [error for _, error in checked(release, patches).values() if error is not None]
    assert not errors, "\n\n".join(errors)


def test_every_body_that_a_patch_relies_on_is_proved() -> None:
    known = sets.declared("mla").known
    assert all(set(RELEASES) & set(where) for found in known.values() for where in found.values())


def test_every_patch_is_proved_on_some_release() -> None:
    assert set(PATCHES) == {id for release in RELEASES for id in applying(release)}


@pytest.mark.parametrize(
    ("quantization", "config", "answer"),
    [
        (None, None, False),
        ("fp8", {"weight_block_size": [128, 128]}, False),
        ("fp8", {"activation_scheme": "dynamic"}, True),
        ("fp8", None, True),
        ("w8a8_fp8", {}, True),
        ("fp8", SimpleNamespace(weight_block_size=[128, 128]), False),
    ],
)
def test_one_activation_scale_for_all_rows(
    quantization: str | None, config: object, answer: bool
) -> None:
    model = SimpleNamespace(
        quantization=quantization, hf_config=SimpleNamespace(quantization_config=config)
    )
    assert scales.one_scale(model) == answer
