"""On an unproven device each kind of work is tried, a bounded number of times, before it serves."""

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_perf_patches.model.state import RunFlag
from sglang_perf_patches.sets.mlx.batched_prefill.grouping import (
    MOST_PROMPTS,
    MOST_TOKENS,
    Group,
    Prompt,
)
from sglang_perf_patches.sets.mlx.kv_arena.arena_self_check import (
    LASTING,
    PHASES,
    STEPS,
    TRIES,
    Kind,
)
from sglang_perf_patches.sets.mlx.self_check import SelfCheck

pytestmark = pytest.mark.newest

EACH = pytest.mark.parametrize("release", ["0.5.11", "0.5.17", "0.5.23"])


@EACH
@pytest.mark.parametrize("fault", ["faulty", "longer"])
def test_groups_that_differ_are_found_and_not_served(found: Any, release: str, fault: str) -> None:
    of = found(release, "trials")["in groups"]
    assert of[fault]["faults"] > 0
    assert of[fault]["played"] == of["stock"]["played"]
    for patch in ("mlx.kv-arena", "mlx.length-groups"):
        state, reason = of[fault][patch]
        assert state == "gated"
        assert "of a step in groups with unequal lengths" in reason
    # Of the first size of kernels alone, which has no fault.
    assert bool(of[fault]["counts"]["grouped"]) == (fault == "longer")


@EACH
def test_steps_in_groups_are_tried_in_each_size_and_then_served(found: Any, release: str) -> None:
    of = found(release, "trials")["in groups"]
    assert of["whole"]["played"] == of["stock"]["played"]
    assert of["whole"]["mlx.length-groups"] == ["live", ""]
    assert of["whole"]["counts"]["tried steps"] == 2 * len(PHASES) * STEPS
    assert of["whole"]["counts"]["grouped"] == of["whole"]["counts"]["steps"] > 0


@EACH
def test_a_kind_that_cannot_be_tried_to_its_end_is_left_to_stock(found: Any, release: str) -> None:
    """The batch changes every three steps; once it settles, its kind has had its tries."""
    of = found(release, "trials")["restless"]["settles"]
    assert of["mlx.kv-arena"]["played"] == of["none"]["played"]
    assert of["mlx.kv-arena"]["counts"]["tried steps"] == TRIES
    assert of["mlx.kv-arena"]["counts"]["stock steps"] == 40 * 3 + 20
    state, reason = of["mlx.kv-arena"]["mlx.kv-arena"]
    assert state == "live"
    assert reason.startswith("stock's code runs for a step with unequal lengths up to 255 built")
    assert reason.endswith(f"lasts for more than {LASTING} steps: {TRIES} tries were too few")


@EACH
def test_a_kind_out_of_tries_is_tried_again_once_a_batch_lasts(found: Any, release: str) -> None:
    of = found(release, "trials")["restless"]["lasts"]
    assert of["mlx.kv-arena"]["played"] == of["none"]["played"]
    assert of["mlx.kv-arena"]["counts"]["tried steps"] == TRIES + len(PHASES) * STEPS
    assert of["mlx.kv-arena"]["counts"]["steps"] > 0
    assert of["mlx.kv-arena"]["mlx.kv-arena"] == ["live", ""]


@EACH
def test_what_goes_wrong_after_the_trial_is_found(found: Any, release: str) -> None:
    of = found(release, "trials")["late"]
    assert of["whole"]["played"] == of["stock"]["played"]
    assert of["whole"]["mlx.kv-arena"] == ["live", ""]
    checks, rest = divmod(of["whole"]["counts"]["tried steps"] - len(PHASES) * STEPS, STEPS)
    assert (checks > 2, rest) == (True, 0)
    state, reason = of["faulty"]["mlx.kv-arena"]
    assert state == "gated"
    assert "gave other bits than stock's" in reason


@pytest.mark.whole_matrix
def test_each_kind_of_a_group_of_prompts_is_tried(found: Any) -> None:
    """Of few and of many prompts, which stock serves; the second group of many is together."""
    of = found("0.5.23", "trials")["prompts"]
    assert of["whole"]["played"] == of["faulty"]["played"] == of["stock"]["played"]
    counts = {"trials": 2, "unused": 0}
    assert of["whole"]["counts"] == counts | {"together": 6, "alone": 2 + 6}
    assert of["whole"]["mlx.batched-prefill"] == ["live", ""]
    assert of["faulty"]["counts"] == counts | {"alone": 2 + 6 + 6, "failed": 1}
    state, reason = of["faulty"]["mlx.batched-prefill"]
    assert state == "gated"
    assert "up to 7 rows of up to 63 tokens" in reason


@pytest.mark.whole_matrix
@pytest.mark.parametrize("fault", ["a position too far", "padding is seen"])
def test_a_mistake_that_single_prompts_share_is_found(found: Any, fault: str) -> None:
    """Two passes of our own would agree on it."""
    of = found("0.5.23", "trials")["mistakes"]
    assert of["none"] == ["live", ""]
    state, reason = of[fault]
    assert state == "gated"
    assert "have other values than stock's" in reason


def test_a_kind_passes_runs_out_of_tries_or_ends_all(caplog: pytest.LogCaptureFixture) -> None:
    reasons: list[str] = []
    patching: Any = SimpleNamespace(gate=reasons.append, ran=RunFlag())
    check = SelfCheck("mlx.some", patching, needed=2, tries=3, until="it rains")
    for _ in range(2):
        assert check.may_try("good")
        assert not check.has_passed("good")
        check.credit("good")
    assert check.has_passed("good")
    assert not check.may_try("good")
    assert [check.may_try("slow") for _ in range(5)] == [True, True, True, False, False]
    assert not check.has_passed("slow")
    said = "stock's code runs for slow until it rains: 3 tries were too few"
    assert [record.getMessage() for record in caplog.records] == [f"mlx.some: {said}"]
    assert patching.ran.note == said
    check.try_again("slow")
    check.doubt("good")
    assert not check.has_passed("good")
    for kind in ("good", "slow", "slow"):
        assert check.may_try(kind)
        check.credit(kind)
    assert check.has_passed("good")
    assert check.has_passed("slow")
    assert patching.ran.note == ""
    check.fail("it differs")
    assert reasons == ["it differs"]
    assert not check.has_passed("good")
    assert not check.may_try("other")


def test_a_batch_that_lasts_for_five_steps_has_tries_enough() -> None:
    """Its first step is not tried, and a phase begins anew with each batch."""
    for lasting in range(STEPS + 1, 40):
        tried = credited = 0
        while credited < len(PHASES):
            credited += (lasting - 1) // STEPS
            tried += lasting - 1
        assert tried - (lasting - 1) < TRIES


def test_a_step_in_groups_is_a_kind_of_its_own() -> None:
    lengths = [600, 9, 12]
    alone, grouped = (Kind.of(lengths, each, False) for each in ([[0, 1, 2]], [[0], [1, 2]]))
    assert alone != grouped
    assert grouped == Kind.of([7, 700, 40], [[1], [0, 2]], False)
    assert grouped != Kind.of([600, 12, 12], [[0], [1, 2]], False)
    assert grouped != Kind.of([1100, 9, 12], [[0], [1, 2]], False)
    assert grouped != Kind.of(lengths, [[0], [1, 2]], True)


def test_shapes_of_prompts_have_few_kinds() -> None:
    powers = [1 << bits for bits in range(13)]

    def sizes(rows: int, prefix: int, tokens: int) -> str:
        prompt = Prompt("r", prefix, range(prefix), range(tokens), 0, {})
        return Group([prompt] * rows, rounds=False).sizes()

    kinds = {
        sizes(rows, prefix, tokens)
        for rows in range(2, MOST_PROMPTS + 1)
        for prefix in (0, *powers)
        for tokens in powers
        if rows * (prefix + tokens) <= MOST_TOKENS
    }
    assert len(kinds) == 131
    assert sizes(5, 0, 31) == sizes(7, 0, 1) == "up to 7 rows of up to 31 tokens"
    assert sizes(5, 40, 32) == "up to 7 rows of up to 63 tokens, behind up to 63"
