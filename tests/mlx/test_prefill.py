"""``mlx.pool-write``, ``mlx.first-buffer`` and ``mlx.last-row`` beyond their cases."""

from typing import Any

import pytest

from matrix import before

pytestmark = pytest.mark.newest


EACH = pytest.mark.parametrize(
    "release",
    [
        "0.5.11",
        *(
            pytest.param(release, marks=pytest.mark.whole_matrix)
            for release in ("0.5.13.post1", "0.5.15", "0.5.18")
        ),
        "0.5.17",
        "0.5.23",
    ],
)


@pytest.mark.whole_matrix  # each case, once for each way to break it
def test_the_cases_tell_the_patches_from_broken_ones(found: Any) -> None:
    verdicts = found("0.5.23", "broken_prefill")
    whole = [verdicts.pop(f"{name}, whole") for name in ("pool-write", "first-buffer", "last-row")]
    assert whole == ["equal"] * 3
    assert verdicts == {
        "pool-write, nothing is copied": "different",
        "pool-write, all slots at once": "different",
        "first-buffer, room for less than the prompt": "different",
        "first-buffer, room for 4096": "different",
        "first-buffer, released buffers keep their room": "different",
        "last-row, the first row": "different",
        "last-row, no trunk is found": "different",
    }


@pytest.mark.whole_matrix  # `test_traffic` has them together too
@EACH
def test_all_patches_together_give_what_stock_gives(found: Any, release: str) -> None:
    """Prefix hits, chunks of prompts, aborts, changes of the batch and cleared caches."""
    for kind, of in found(release, "together").items():
        assert of["mlx"] == of["none"], kind
        live = {"mlx.pool-write", "mlx.last-row", "mlx.kv-arena"}
        if not before(release, "0.5.15"):
            live.add("mlx.first-buffer")
        assert live <= set(of["ran"])


@EACH
def test_a_pool_that_grows_holds_what_one_of_all_slots_holds(found: Any, release: str) -> None:
    """Random writes and reads, some by stock's own code while the patch pauses."""
    told = found(release, "growing_pool")
    assert told.pop("whole") == ""
    assert told.pop("least") < 0.5
    assert set(told) == {"tokens are lost", "stock's code gets few slots"}
    assert all(told.values()), told


@EACH
def test_a_prefix_hit_looks_at_its_slots_once_for_all_layers(found: Any, release: str) -> None:
    of = found(release, "looks_at_slots")
    assert of["mlx.pool-write"] == of["none"]
    assert of["layers"] > 1
    # The prefix that the layers read, and the new tokens that they write.
    assert of["looks"] == [280, 8]


@pytest.mark.parametrize("release", ["0.5.17", "0.5.23"])
def test_buffers_are_stocks_where_cudnn_attends(found: Any, release: str) -> None:
    of = found(release, "on_cuda")
    assert of["1"]["room"] == 4096
    assert of["1"]["state"]["state"] == "gated"
    assert "MLX_CUDA_USE_CUDNN_SDPA=0" in of["1"]["state"]["reason"]
    assert of["0"]["room"] == 512
    assert of["0"]["state"]["state"] == "live"
    assert of["1"]["arena"] == of["0"]["arena"] == "live"
    assert of["alone"].startswith("gated here: cuDNN")
    assert of["beside"] == "went live"


def test_on_an_unproven_device_the_head_gets_as_many_rows_as_bits_need(found: Any) -> None:
    of = found("0.5.23", "few_rows")
    for rows in (1, 2, 12, 280):
        assert of[f"{rows} mlx.last-row"]["played"] == of[f"{rows} none"]["played"]
    one, two, never = (of[f"{rows} mlx.last-row"] for rows in (1, 2, 280))
    # Prompts of 300 and 310 tokens have one size; the first of a size is computed both ways.
    assert one["counts"] == two["counts"] == {"whole": 2, "cut": 1, "checks": 2}
    assert one["state"]["state"] == two["state"]["state"] == "live"
    assert never["state"]["state"] == "gated"
    assert "mlx_lm.models.qwen3" in never["state"]["reason"]
    assert never["counts"] == {"whole": 3, "checks": 1}
    # Prompts of 9 and 14 tokens, between which the kernel changes: each has its own verdict.
    assert of["12 mlx.last-row"]["counts"] == {"whole": 3, "cut": 1, "checks": 2}


def test_on_a_cpu_whose_blas_takes_one_row_in_another_way_the_head_is_checked(found: Any) -> None:
    of = found("0.5.23", "other_blas")
    assert of["here"] is True
    assert of["there"] is False
    for dtype in ("float32", "bfloat16"):
        assert of[f"{dtype} mlx.last-row"]["played"] == of[f"{dtype} none"]["played"]
    whole, few = of["float32 mlx.last-row"], of["bfloat16 mlx.last-row"]
    assert whole["state"]["state"] == "gated"
    assert whole["counts"] == {"whole": 2}
    assert few["state"]["state"] == "live"
    assert few["counts"] == {"whole": 1, "cut": 1, "checks": 1}
