"""swa.window-pool on the releases that it is declared for: real schedulers with small models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import released
import tiers
from sglang_perf_patches import sets
from sglang_perf_patches.model.patch import by_id

PATCH = by_id(sets.load())["swa.window-pool"]
RELEASES = tuple(release for variant in PATCH.variants for release in variant.releases)
JOBS = Path(__file__).with_name("window_jobs.py")
BROKEN = (
    "full layers get the window",
    "layers of the window are whole",
    "layers change places",
)
SAYS = {
    "images": "takes images",
    "no pool": "--disable-hybrid-swa-memory",
    "backend": "torch_native",
    "two backends": "different attention backends",
    "windows alone": "not both kinds of layers",
    "both directions": "both directions",
    "another model": "LlamaForCausalLM has the pools that stock gives it",
}
"""What is said where a server is left to stock."""


@pytest.fixture(scope="module", params=RELEASES)
def answers(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What every job answers on a release."""
    whole = tiers.is_whole(request.config)
    jobs: dict[str, tuple[str, dict[str, Any]]] = {
        "left to stock": ("left_to_stock", {}),
        "both together": ("both_together", {}),
        "images": ("refuses_images_in_prompts", {}),
        "pressed": ("pressed_hard", {"episodes": 30 if whole else 6}),
        **{f"broken: {how}": ("broken", {"how": how}) for how in BROKEN},
    }
    given = released.play(released.tree(request.param), JOBS, list(jobs.values()))
    for key, line in zip(jobs, given, strict=True):
        assert "error" not in line, f"{request.param}, {key}:\n{line.get('error')}"
    return {key: line["value"] for key, line in zip(jobs, given, strict=True)}


def test_what_is_not_proven_is_stocks_and_says_why(answers: dict[str, Any]) -> None:
    said = answers["left to stock"]
    assert said.keys() == SAYS.keys()
    for name, reason in said.items():
        assert SAYS[name] in reason, (name, reason)


def test_with_the_pools_ratio_its_pools_are_made(answers: dict[str, Any]) -> None:
    stock, alone, both = answers["both together"]
    assert (stock, alone) == (0, 3276)
    assert 0 < both < alone


def test_small_pools_serve_what_stock_serves(answers: dict[str, Any]) -> None:
    told = answers["pressed"]
    assert told["served"] > 0
    assert told["hits"] > 0, "no prefix was found again"


def test_a_broken_patch_is_noticed(answers: dict[str, Any]) -> None:
    for how in BROKEN:
        assert answers[f"broken: {how}"], how
