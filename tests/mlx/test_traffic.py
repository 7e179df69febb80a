"""The patches of the set together: random traffic on MLX's real worker is what it is with stock.

Equal are each request's tokens and the KV of each prefix in the radix cache; and what is in memory
is what the pool, the requests and the patches say they hold.
"""

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import released

_TRAFFIC = Path(__file__).with_name("traffic.py")

PATCHES = (
    *("mlx.pool-write", "mlx.first-buffer", "mlx.last-row", "mlx.kv-arena", "mlx.length-groups"),
    *("mlx.next-turn", "mlx.batched-prefill"),
)
ALL = ",".join(PATCHES)
NEEDS = {
    "mlx.kv-arena": ("mlx.pool-write",),
    "mlx.length-groups": ("mlx.pool-write", "mlx.kv-arena"),
}
"""What a patch does not go live without."""

NOTHING_TO_DO = {"qwen3": {"mlx.next-turn"}, "gpt_oss": {"mlx.pool-write"}}
"""Stock has a pool where no layer has a window, and next-turn serves those that have one."""

NOT_YET: dict[str, set[str]] = {"0.5.18": {"mlx.next-turn"}, "0.5.23": set()}

MODELS = pytest.mark.parametrize("model", NOTHING_TO_DO)


def _with_needs(*patches: str) -> str:
    chosen = {*patches, *(each for patch in patches for each in NEEDS.get(patch, ()))}
    return ",".join(patch for patch in PATCHES if patch in chosen)


def _found(job: str, release: str = "0.5.23", **arguments: Any) -> dict[str, Any]:
    place = released.tree(release, beginning="mlx")
    of: dict[str, Any] = released.value(place, _TRAFFIC, job, arguments=arguments)
    return of


def _require_stocks(of: dict[str, Any], model: str, release: str = "0.5.23") -> None:
    assert {name: each["differs"] for name, each in of.items()} == dict.fromkeys(of, "")
    ran = {patch for each in of.values() for patch in each["ran"]}
    assert ran == set(PATCHES) - NOTHING_TO_DO[model] - NOT_YET[release]


@MODELS
def test_all_patches_together(model: str) -> None:
    _require_stocks(_found("traffic", model=model, selections=[ALL], seeds=[1]), model)


@pytest.mark.whole_matrix
@pytest.mark.parametrize("release", NOT_YET)
@MODELS
def test_all_patches_together_for_longer(model: str, release: str) -> None:
    chosen = _with_needs(*(set(PATCHES) - NOT_YET[release]))
    of = _found("traffic", release, model=model, selections=[chosen], seeds=[*range(3, 9)])
    _require_stocks(of, model, release)


@pytest.mark.whole_matrix
@MODELS
def test_every_pair(model: str) -> None:
    pairs = sorted({_with_needs(*pair) for pair in combinations(PATCHES, 2)})
    _require_stocks(_found("traffic", model=model, selections=pairs, seeds=[1]), model)


@pytest.mark.whole_matrix
@MODELS
def test_the_traffic_tells_the_patches_from_broken_ones(model: str) -> None:
    of = _found("broken", model=model, selection=ALL, seeds=[1, 2, 3])
    assert of.pop("whole") == ""
    assert len(of) >= 2
    assert all(of.values()), of
