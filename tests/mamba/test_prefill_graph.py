"""`mamba.gdn-prefill-graph` beside its proof, on releases that can capture a linear layer."""

from typing import Any

import pytest

EACH = pytest.mark.parametrize(
    "release", [pytest.param("0.5.22", marks=pytest.mark.whole_matrix), "0.5.23"]
)


@EACH
def test_a_table_shows_the_last_batch_only(found: Any, release: str) -> None:
    """Whatever was in it; each part agrees with stock's own functions."""
    assert found(release, "graph_jobs", "parts")["tables"] > 60


PARTS: dict[str, Any] = {
    # A batch of another tile does not fit.
    "tiles": {"stock's": [16, 32, 64], "others": []},
    # The gate reads what the release resolved; of the other spellings none is gated.
    "gates": {
        "--enable-two-batch-overlap": ["two-batch-overlap"],
        "--attn-cp-size 2": ["context-parallel"],
    },
    "chunks": "stock's chunks have 32 tokens; ours have 64",
    # FlashInfer's kernel is served where it was proven.
    "kernels": {
        "Hopper": None,
        "Blackwell": "FlashInfer's kernel is another one on this GPU",
        "SM120": "FlashInfer's kernel is another one on this GPU",
        "bfloat16": "FlashInfer's kernel would convert states of torch.bfloat16",
        "unknown": "object was not captured in any proof",
    },
    # Only short buckets are captured, and no batch loses its graph.
    "buckets": {
        "1": True,
        "2048": True,
        "2112": False,
        "most": None,
        # A larger bucket may get a batch of few tokens only if another rank has more of them.
        "own batches": False,
        "those of other ranks": True,
    },
    # DP attention: all ranks replay the same graph, and an idle one computes nothing.
    "of_a_rank": {"compared": 1, "one request": [False, False]},
    # Graphs of one request: on several GPUs each costs too much of the boot to have them all.
    "ones": {
        "a GPU": [42, 2048],
        "two GPUs": [30, 512],
        "two GPUs, few sizes": [3, 2048],
        "DP attention": [0, 0],
    },
    # Two warm-ups and a capture, once more with the second graph, or only its capture.
    "warm_ups": [6, 4, 3],
    # Each runner captures into a pool of its own: a GPU refuses that of graphs that were freed.
    "pools": {"has a new pool": True, "a pool without graphs is refused": True},
    # Each layer is waited for as often as by stock, with an external cache's counter; the proof has
    # that of a hierarchical cache.
    "waits": {"stock": [0, 1], "patched": [0, 1]},
}
"""Part of `graph_jobs.parts` → what it finds."""


@pytest.mark.parametrize("part", PARTS)
@EACH
def test_what_the_patch_does_beside_the_proof(found: Any, release: str, part: str) -> None:
    assert found(release, "graph_jobs", "parts")[part] == PARTS[part]


@pytest.mark.whole_matrix  # the proof has it too, with tables of two rows
@EACH
def test_more_requests_than_tables_hold_replay_stocks_graph(found: Any, release: str) -> None:
    assert found(release, "replay_jobs", "many") == 1


@EACH
def test_it_stays_while_graphs_captured_with_it_are_left(found: Any, release: str) -> None:
    leaving = found(release, "graph_jobs", "parts")["leaving"]
    assert leaving["state"] == "live"
    assert "waits until no model runner is left that may replay" in leaving["reason"]
    assert leaving["replays"]
    assert leaving["left"]


@pytest.mark.whole_matrix
@EACH
def test_a_broken_patch_is_found(found: Any, release: str) -> None:
    errors = found(release, "replay_jobs", "broken")
    assert "result['outputs'][0]" in errors["no wait"]
    assert "is captured" in errors["any tile"]


@pytest.mark.whole_matrix
@EACH
def test_a_broken_break_is_found(found: Any, release: str) -> None:
    errors = found(release, "replay_jobs", "broken_breaks")
    assert all(each.startswith("different: ") for each in errors.values()), errors
    assert len(errors) == 5


@pytest.mark.whole_matrix  # the proof's replays four times more
@EACH
def test_a_broken_graph_of_one_request_is_found(found: Any, release: str) -> None:
    errors = found(release, "replay_jobs", "broken_one")
    assert all(each.startswith("different: ") for each in errors.values()), errors
    assert len(errors) == 6
