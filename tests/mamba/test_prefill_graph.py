"""`mamba.gdn-prefill-graph` on the releases that can capture a linear layer.

`tests.proof` shows that replays give what stock's give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

EACH = pytest.mark.parametrize(
    "release", [pytest.param("0.5.22", marks=pytest.mark.whole_matrix), "0.5.23"]
)

Found = Callable[..., dict[str, Any]]


@EACH
def test_a_table_shows_the_last_batch_only(found: Found, release: str) -> None:
    """Whatever was in it; each part agrees with stock's own functions."""
    assert found(release, "graph_jobs", "parts")["tables"] > 60


@EACH
def test_a_batch_of_another_tile_does_not_fit(found: Found, release: str) -> None:
    assert found(release, "graph_jobs", "parts")["tiles"] == {"stock's": [16, 32, 64], "others": []}


@EACH
def test_the_gate_reads_what_the_release_resolved(found: Found, release: str) -> None:
    assert found(release, "graph_jobs", "parts")["gates"] == {
        "plain": [],
        "--tp-size 2": [],
        "--attn-dp-size 2": [],
        "--enable-dp-attention": [],
        "--enable-two-batch-overlap": ["two-batch-overlap"],
        "--attn-cp-size 2": ["context-parallel"],
        "--moe-dense-tp-size 1": [],
    }


@EACH
def test_other_chunks_are_left_to_stock(found: Found, release: str) -> None:
    assert (
        found(release, "graph_jobs", "parts")["chunks"]
        == "stock's chunks have 32 tokens; ours have 64"
    )


@EACH
def test_flashinfers_kernel_is_served_where_it_was_proven(found: Found, release: str) -> None:
    assert found(release, "graph_jobs", "parts")["kernels"] == {
        "Hopper": None,
        "Blackwell": "FlashInfer's kernel is another one on this GPU",
        "SM120": "FlashInfer's kernel is another one on this GPU",
        "bfloat16": "FlashInfer's kernel would convert states of torch.bfloat16",
        "unknown": "object was not captured in any proof",
    }


@EACH
def test_only_short_buckets_are_captured_and_no_batch_loses_its_graph(
    found: Found, release: str
) -> None:
    assert found(release, "graph_jobs", "parts")["buckets"] == {
        "1": True,
        "2048": True,
        "2112": False,
        "most": None,
        # A larger bucket may get a batch of few tokens only if another rank has more of them.
        "own batches": False,
        "those of other ranks": True,
    }


@EACH
def test_a_rank_replays_what_fits_all_ranks_and_computes_nothing_if_idle(
    found: Found, release: str
) -> None:
    """DP attention: all ranks replay the same graph; `test_ranks` has two real ones."""
    assert found(release, "graph_jobs", "parts")["of_a_rank"] == {
        "compared": 1,
        "one request": [False, False],
    }


@EACH
def test_the_default_sizes_have_a_graph_of_one_request(found: Found, release: str) -> None:
    """On several GPUs each costs too much of the boot to have them all."""
    assert found(release, "graph_jobs", "parts")["ones"] == {
        "a GPU": [42, 2048],
        "two GPUs": [30, 512],
        "two GPUs, few sizes": [3, 2048],
        "DP attention": [0, 0],
    }


@EACH
def test_only_the_first_graph_of_one_request_is_warmed_up(found: Found, release: str) -> None:
    """Two warm-ups and a capture, once more with the second graph, or only its capture."""
    assert found(release, "graph_jobs", "parts")["warm_ups"] == [6, 4, 3]


@pytest.mark.whole_matrix  # the proof has as many requests as tables of two rows need
@EACH
def test_each_runner_captures_into_a_pool_of_its_own(found: Found, release: str) -> None:
    """A GPU refuses the pool of graphs that were freed."""
    assert found(release, "graph_jobs", "parts")["pools"] == {
        "has a new pool": True,
        "a pool without graphs is refused": True,
    }


@pytest.mark.whole_matrix  # the proof has it too, with tables of two rows
@EACH
def test_more_requests_than_tables_hold_replay_stocks_graph(found: Found, release: str) -> None:
    assert found(release, "replay_jobs", "many") == 1


@EACH
def test_each_layer_is_waited_for_as_often_as_by_stock(found: Found, release: str) -> None:
    """The proof has the counter of a hierarchical cache; this is an external cache's."""
    waits = found(release, "graph_jobs", "parts")["waits"]
    assert waits["stock"] == waits["patched"] == [0, 1]


@EACH
def test_it_stays_while_graphs_are_left_that_were_captured_with_it(
    found: Found, release: str
) -> None:
    leaving = found(release, "graph_jobs", "parts")["leaving"]
    assert leaving["state"] == "live"
    assert "waits until no model runner is left that may replay" in leaving["reason"]
    assert leaving["replays"]
    assert leaving["left"]


@pytest.mark.whole_matrix
@EACH
def test_a_broken_patch_is_found(found: Found, release: str) -> None:
    errors = found(release, "replay_jobs", "broken")
    assert "result['outputs'][0]" in errors["no wait"]
    assert "is captured" in errors["any tile"]


@pytest.mark.whole_matrix
@EACH
def test_a_broken_break_is_found(found: Found, release: str) -> None:
    errors = found(release, "replay_jobs", "broken_breaks")
    assert all(each.startswith("different: ") for each in errors.values()), errors
    assert len(errors) == 5


@pytest.mark.whole_matrix  # the proof's replays four times more
@EACH
def test_a_broken_graph_of_one_request_is_found(found: Found, release: str) -> None:
    errors = found(release, "replay_jobs", "broken_one")
    assert all(each.startswith("different: ") for each in errors.values()), errors
    assert len(errors) == 6
