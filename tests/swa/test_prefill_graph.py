"""swa.prefill-graph with real runners, backends and pools; the kernel is real in `verify` only."""

from pathlib import Path
from typing import Any

import pytest

import released
from sglang_perf_patches import sets
from sglang_perf_patches.model.patch import by_id

pytestmark = pytest.mark.newest


RANK = Path(__file__).with_name("prefill_rank.py")
PATCH = by_id(sets.load())["swa.prefill-graph"]
RELEASES = tuple(release for variant in PATCH.variants for release in variant.releases)
JOBS = (
    *("waits_for_each_layer", "stocks_once_it_is_off", "takes_its_announcement_back"),
    *("keeps_stocks_graphs", "choices_of_lengths", "broken_graphs"),
)
SAYS = {
    "another version": "FlashAttentionBackend was not captured",
    "MLA": "another kind of attention",
    "quantised KV": "--kv-cache-dtype",
    "a context-parallel server": "KV pool",
    "a layer without causality": "another way",
    "long buckets": "up to 512 tokens",
    "another kernel": "chooses in another way",
    "more than the output": "asks attention for more: q_rope",
}
"""What is said where a server keeps stock's graphs. A draft's do not gate its target's."""


@pytest.fixture(scope="module", params=RELEASES)
def answers(request: pytest.FixtureRequest, values: Any) -> dict[str, Any]:
    return values(request.param, {job: {} for job in JOBS})


def test_a_replay_waits_for_what_each_layer_loads(answers: dict[str, Any]) -> None:
    assert answers["waits_for_each_layer"] == [0, 1]


def test_a_rank_that_comes_late_does_not_agree_by_itself(answers: dict[str, Any]) -> None:
    assert answers["takes_its_announcement_back"] == [False, False]


def test_without_the_patch_stocks_graph_is_replayed(answers: dict[str, Any]) -> None:
    assert answers["stocks_once_it_is_off"] == [True, False]


def test_what_is_not_proven_keeps_stocks_graphs(answers: dict[str, Any]) -> None:
    reasons = dict(answers["keeps_stocks_graphs"])
    assert not reasons.pop("a draft")
    assert reasons.keys() == SAYS.keys()
    for name, reason in reasons.items():
        assert SAYS[name] in (reason or ""), (name, reason)


def test_the_choices_are_flash_attentions(answers: dict[str, Any]) -> None:
    assert answers["choices_of_lengths"]["others"] == 0
    assert answers["choices_of_lengths"]["seen"] > 1000


def test_a_broken_patch_is_noticed(answers: dict[str, Any]) -> None:
    broken = answers["broken_graphs"]
    assert len(broken) == 4
    assert all("Different" in said for said in broken.values()), broken


@pytest.mark.whole_matrix
@pytest.mark.parametrize("release", RELEASES)
def test_two_ranks_compute_what_stock_does(release: str) -> None:
    """A server's batches, tokens and logits, over gloo; and if only one rank has the patch."""
    sides = {
        "stock": ["none", "none"],
        "patched": [PATCH.id, PATCH.id],
        "one of them": ["none", PATCH.id],
    }
    told = {side: released.ranks(release, RANK, chosen) for side, chosen in sides.items()}
    state = {side: [each.pop("patch") for each in ranks] for side, ranks in told.items()}
    left = {side: [each.pop("left") for each in ranks] for side, ranks in told.items()}
    ours = {side: [each.pop("ours") for each in ranks] for side, ranks in told.items()}
    assert state["patched"] == [["live", ""]] * 2
    assert state["one of them"][1] == ["gated", "a rank of this server runs stock's code here"]
    assert left["patched"] == ["live", "live"], "a rank may go back to stock's graphs by itself"
    assert ours["stock"] == ours["one of them"] == [0, 0]
    assert ours["patched"] == [2, 2]
    assert all(each["finite"] for ranks in told.values() for each in ranks)
    assert told["patched"] == told["one of them"] == told["stock"]
