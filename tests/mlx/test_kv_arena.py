"""``mlx.kv-arena`` beyond its case: the case can fail, memory, growth, what stays stock.

On 0.5.11 stock raises where a buffer ends. Steps that an arena serves need no such buffer.
"""

from typing import Any

import pytest

from sglang_perf_patches.sets.mlx.kv_arena.arena_self_check import PHASES, STEPS

pytestmark = pytest.mark.newest


RELEASES = ("0.5.11", "0.5.17", "0.5.23")
TRIED = len(PHASES) * STEPS
EACH = pytest.mark.parametrize("release", RELEASES)


@pytest.mark.parametrize("release", ["0.5.11", "0.5.23"])
@pytest.mark.whole_matrix  # the whole case, once for each way to break it
def test_the_case_tells_the_patch_from_one_that_is_broken(found: Any, release: str) -> None:
    verdicts = found(release, "broken_arena")
    assert verdicts.pop("whole") == "equal"
    # Requests of the wrong length, or layers of different lengths, can't be concatenated.
    assert verdicts == {
        "V is K": "different",
        "a row comes back without its last token": "different",
        "a batch in another order is taken for the same": "raised ValueError",
        "everything is left to stock": "different",
        "a failed step counts": "different",
    }


@EACH
def test_buffers_are_not_larger_than_stocks_and_go_with_requests(found: Any, release: str) -> None:
    memory = found(release, "arena_memory")
    stock, patched = memory["none"], memory["mlx.kv-arena"]
    assert patched["peak"] <= stock["peak"]
    assert patched["steady"] < stock["steady"] / 4
    assert patched["fewer"] < patched["steady"]
    # The one zero of each buffer, which the next request will use: 6 requests, 4 layers, float32.
    assert patched["gone"] <= 6 * 4 * 2 * 4
    assert patched["counts"] == {"steps": 199, "stock steps": 1, "builds": 1} | {
        name: patched["counts"][name] for name in ("layers", "growths")
    }


@EACH
def test_a_step_writes_into_the_buffers_and_copies_none(found: Any, release: str) -> None:
    """MLX copies an array that it is to update if something else still holds it."""
    patched = found(release, "arena_memory")["mlx.kv-arena"]
    buffer = patched["steady"] / (4 * 2)
    assert patched["in steps"] < buffer / 2


@EACH
def test_growth_is_amortised(found: Any, release: str) -> None:
    memory = found(release, "arena_memory")
    assert 1 <= memory["mlx.kv-arena"]["counts"]["growths"] <= 200 // 64
    # 64 tokens and a sixteenth ahead, rounded up by 64, and by 64 more beside a multiple of 256.
    assert memory["growths"]["copies"] < 100
    assert memory["growths"]["spare"] <= 64 + 64 + 8


@pytest.mark.parametrize("release", ["0.5.23"])
def test_no_buffer_makes_mlx_take_another_kernel_than_for_stocks(found: Any, release: str) -> None:
    """On CUDA a length that is a multiple of 256 does."""
    capacities = found(release, "arena_memory")["capacities"]
    assert len(capacities) > 10_000
    assert all(capacity % 256 for capacity in capacities)


@EACH
def test_a_steady_batch_is_neither_padded_nor_concatenated(found: Any, release: str) -> None:
    nodes = found(release, "arena_nodes")
    for kind in ("equal", "skewed"):
        few, many = nodes[f"mlx.kv-arena {kind} 2"], nodes[f"mlx.kv-arena {kind} 6"]
        assert many == few
        assert many["zeros"] == 0
        assert many["all"] < nodes[f"none {kind} 2"]["all"] < nodes[f"none {kind} 6"]["all"]
        # Two are left a layer: those of stock, for K and V.
        stock = nodes[f"none {kind} 6"]["concatenations"]
        assert stock - many["concatenations"] >= 2 * 4


@EACH
def test_requests_of_far_apart_lengths_stay_with_stock(found: Any, release: str) -> None:
    """Padded to the longest, they would take more than the buffers that stock has for them."""
    far = found(release, "far_apart")
    assert far["mlx.kv-arena"]["played"] == far["none"]["played"]
    # Of the two steps that are left, the first is stock's too.
    assert far["mlx.kv-arena"]["counts"]["stock steps"] == 3 + 1
    assert far["mlx.kv-arena"]["counts"]["steps"] == 3 - 1


@EACH
def test_a_batch_that_changes_at_every_step_is_stocks(found: Any, release: str) -> None:
    """After one build, because the batch before had come again and again."""
    for requests in ("2", "4"):
        assert found(release, "changing")[requests]["changing"] == {
            "builds": 1, "steps": 1, "layers": 4, "partings": 1, "stock steps": 5
        }  # fmt: skip


@EACH
@pytest.mark.parametrize("requests", ["2", "4"])
def test_a_batch_that_settles_loses_no_more_steps(found: Any, release: str, requests: str) -> None:
    """It lost only the last of the changing steps."""
    settled = found(release, "changing")[requests]["settled"]
    assert settled == {"builds": 1, "steps": 4, "layers": 4 * 4}


@EACH
def test_a_lasting_batch_that_changes_once_is_rebuilt_at_once(found: Any, release: str) -> None:
    for requests in ("2", "4"):
        changed = found(release, "changing")[requests]["changed once"]
        assert changed == {"builds": 1, "steps": 3, "layers": 3 * 4}


@EACH
def test_rows_that_stock_serves_share_no_buffer(found: Any, release: str) -> None:
    """MLX would copy it for each of them."""
    of = found(release, "memory_while_changing")
    # MLX frees small arrays when its own thread gets to it: peaks differ by some 0.3 %.
    assert of["patched"]["taken"] <= 1.02 * of["stock"]["taken"]
    assert of["patched"]["held"] <= 1.02 * of["stock"]["held"]


@pytest.mark.whole_matrix
@EACH
def test_on_an_unproven_device_other_arenas_are_never_served(found: Any, release: str) -> None:
    """The requests have stock's values throughout, and the patch is gated for the process."""
    of = found(release, "broken_trial")
    assert of["broken"]["played"] == of["whole"]["played"] == of["stock"]["played"]
    assert of["broken"]["state"]["state"] == "gated"
    assert "gave other bits than stock's" in of["broken"]["state"]["reason"]
    # What is read two steps later: both were computed twice before the first was read.
    assert of["broken"]["counts"]["tried steps"] <= 2
    assert "steps" not in of["broken"]["counts"]
    assert of["whole"]["counts"]["tried steps"] >= TRIED
    assert of["whole"]["counts"]["steps"] > 50
    assert of["whole"]["state"]["state"] == "live"


@pytest.mark.whole_matrix
@EACH
@pytest.mark.parametrize("fault", ["queued", "enlarged", "moved", "unequal", "longer"])
def test_a_fault_of_a_queued_step_is_seen_in_time(found: Any, release: str, fault: str) -> None:
    """Nobody has waited for the step before: neither stock, which chains steps, nor the trial."""
    of = found(release, "queued_faults")
    stock, faulty = of["stock"]["played"], of[fault]
    assert faulty["faults"] > 0
    assert faulty["played"] == stock[: len(faulty["played"])]
    assert faulty["state"]["state"] == "gated"
    assert "built before the last one was read gave other bits" in faulty["state"]["reason"]


@EACH
def test_each_kind_of_queued_step_is_tried_and_then_served(found: Any, release: str) -> None:
    """Of equal and of unequal lengths, and of equal lengths at the next size of kernels."""
    of = found(release, "queued_faults")
    assert of["none"]["played"] == of["stock"]["played"]
    assert of["none"]["state"]["state"] == "live"
    assert of["none"]["counts"]["tried steps"] == 3 * TRIED
    assert of["none"]["counts"]["steps"] > 0
    assert of["longer"]["counts"]["steps"] > 0


@EACH
def test_a_trial_that_waits_for_each_step_would_see_nothing(found: Any, release: str) -> None:
    """So the faults above are of queued steps, and would reach requests."""
    of = found(release, "queued_faults")
    assert of["waits"]["state"]["state"] == "live"
    assert of["waits"]["faults"] > 0
    assert of["waits"]["played"] != of["stock"]["played"][: len(of["waits"]["played"])]


@pytest.mark.whole_matrix  # of an old release
def test_many_requests_that_grow_give_what_wide_buffers_give(found: Any) -> None:
    many = found("0.5.11", "small_buffers")["many"]
    assert "[concatenate]" in many["stock"]["raised"]
    assert "steps" not in many["patched"]["counts"]
    assert many["patched"]["played"] == many["wide"]["played"]
    assert many["all patched"]["played"] == many["wide"]["played"]


@pytest.mark.whole_matrix  # of an old release
def test_equal_lengths_are_silently_wrong_in_stock_and_right_when_patched(found: Any) -> None:
    """All of stock's layers then miss the newest token alike, and nothing is left to raise."""
    equal = found("0.5.11", "small_buffers")["equal lengths"]
    assert equal["stock"]["played"] != equal["wide"]["played"]
    assert equal["patched"]["played"] == equal["wide"]["played"]
