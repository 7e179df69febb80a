"""Two processes with half of a model each: what the prefill graph does where they differ."""

import json
from pathlib import Path
from typing import Any

import pytest

import released

pytestmark = pytest.mark.whole_matrix  # four processes with a model each

EACH = pytest.mark.parametrize("release", ["0.5.22", "0.5.23"])
GRAPH = "mamba.gdn-prefill-graph"
CHUNKS = "mamba.mamba2-chunk-indices"
_HERE = Path(__file__).parent


@EACH
def test_a_server_boots_and_computes_the_same_if_one_rank_has_no_patch(release: str) -> None:
    """Both ranks then run stock's code, so both plays are compared with it."""
    stock = _ranks(release, GRAPH, "none")
    patched = _ranks(release, GRAPH, GRAPH)
    assert [each["patch"] for each in stock] == [
        ["gated", "a rank of this server runs stock's code here"],
        ["off", "not chosen"],
    ]
    assert [each["on_tables"] for each in stock] == [[], []]
    for each in patched:
        prefills = [batch for batch in each["computed"]["batches"] if batch[0] == "prefill"]
        assert each["patch"] == ["live", ""]
        assert len(each["on_tables"]) == len(prefills) + 2  # and its two buckets
    assert [each["computed"] for each in patched] == [each["computed"] for each in stock]


@EACH
def test_ranks_with_experts_of_their_own_compute_what_stocks_do(release: str) -> None:
    stock, patched = _compared(release, GRAPH, ep_size=2)
    assert all("expert-parallel" in each["on"] for each in patched)
    assert min(len(each["on_tables"]) for each in patched) > 2
    assert [each["on_tables"] for each in stock] == [[], []]


@EACH
def test_ranks_with_requests_of_their_own_compute_what_stocks_do(release: str) -> None:
    """DP attention: both ranks replay the bucket of the one that has the most tokens."""
    server = {
        "enable_dp_attention": True,
        "dp_size": 2,
        "chunked_prefill_size": 128,  # of both
        "mamba_radix_cache_strategy": "extra_buffer",
    }
    stock, patched = _compared(release, GRAPH, **server)
    for each in patched:
        assert "dp-attention" in each["on"]
        assert sum(sum(batch[3]) for batch in each["computed"]["batches"])  # a cached prefix
    # Three buckets, then what both ranks replay. An idle rank has no tokens. A batch of 6 computes
    # with another tile than its bucket of 64, so both ranks replay stock's graph in its step.
    captured = [64, 40, 8]
    assert [each["on_tables"] for each in patched] == [
        [*captured, 64, 46, 0, 0, 5],
        [*captured, 47, 0, 64, 36, 7],
    ]
    assert [each["on_tables"] for each in stock] == [[], []]


@pytest.mark.parametrize("release", ["0.5.23"])
def test_ranks_that_compute_chunks_on_the_host_compute_what_stock_does(release: str) -> None:
    stock, patched = _compared(release, CHUNKS, script="mamba2_rank")
    for each in patched:
        batches = each["computed"]["batches"]
        behind = [kind for kind, _, _, cached in batches if kind == "prefill" and any(cached)]
        assert behind
        assert each["chunks"] == len(behind)
    assert [each["chunks"] for each in stock] == [0, 0]


def _compared(release: str, patch: str, **options: Any) -> list[list[dict[str, Any]]]:
    """Both ranks on stock and patched, where they compute the same."""
    stock, patched = (_ranks(release, each, each, **options) for each in ("none", patch))
    assert [each["patch"] for each in patched] == [["live", ""]] * 2
    assert [each["computed"] for each in patched] == [each["computed"] for each in stock]
    return [stock, patched]


def _ranks(
    release: str, *selections: str, script: str = "qwen_rank", **server: Any
) -> list[dict[str, Any]]:
    return released.ranks(release, _HERE / f"{script}.py", selections, json.dumps(server))
