"""When ranks keep stock's broadcast."""

from __future__ import annotations

from typing import Any
from unittest import mock

import sglang_perf_patches
from sglang_perf_patches.sets.mla.request_broadcast import body
from sglang_perf_patches.verify.comparing import live
from tests.proof.mla.request_broadcast import PATCH, Round, ranks

ROUNDS: list[Round] = [*[([], [])] * 6, (["a"], ["b"]), *[([], [])] * 6, (["c"], [])]
WANTED = [[*came, *own] for came, own in ROUNDS]


def _all_by_gloo(**options: Any) -> None:
    with live(PATCH, ran=None):
        for rank in ranks(ROUNDS, **options):
            assert rank["got"] == WANTED
            assert rank["gloo"] >= len(ROUNDS)


def a_rank_without_the_patch() -> None:
    for without in range(2):

        def before(rank: int, number: int, without: int = without) -> None:
            if rank == without and number == 0:
                sglang_perf_patches.deactivate()

        _all_by_gloo(before=before)


def ranks_without_a_queue() -> None:
    _all_by_gloo(mq_broadcaster=None)


def the_first_rank_gives_up_and_says_so() -> None:
    def before(rank: int, number: int) -> None:
        if rank == 1 and number == 0:
            sglang_perf_patches.deactivate()
        if rank == 0 and number in {0, 1}:
            state = sglang_perf_patches.report().of(PATCH)
            told = state.state, state.reason
            assert told == [("live", ""), ("gated", _REASON)][number], told

    with mock.patch.object(body, "_PATIENCE_S", -1.0):
        _all_by_gloo(before=before)


def ranks_that_switched_stay_so() -> None:
    def before(rank: int, number: int) -> None:
        if number == len(ROUNDS) - 1:
            sglang_perf_patches.deactivate()
            state = sglang_perf_patches.report().of(PATCH)
            assert state.state == "live", state
            assert state.reason.endswith("waits until the server ends"), (rank, state)

    with live(PATCH, ran=None):
        switched = ranks(ROUNDS, before=before)
    assert [rank["got"] for rank in switched] == [WANTED, WANTED]
    assert all(rank["gloo"] < len(ROUNDS) for rank in switched)


def a_rank_that_has_announced_itself_stays_so() -> None:
    """Also if it is to lose the patch before the first rank has asked."""
    told = []

    def late(ranks: Any) -> bool:
        told.append(ranks)
        return len(told) > 1 and _ALL(ranks)

    def before(rank: int, number: int) -> None:
        if number == 1:
            sglang_perf_patches.deactivate()

    with mock.patch.object(body, "_all_announced", late), live(PATCH, ran=None):
        switched = ranks(ROUNDS, before=before)
    assert [rank["got"] for rank in switched] == [WANTED, WANTED]
    assert all(rank["gloo"] < len(ROUNDS) for rank in switched)


_ALL = body._all_announced
_REASON = "a rank of this server runs stock's code here"
CHECKS = {
    check.__name__: check
    for check in (
        a_rank_without_the_patch,
        ranks_without_a_queue,
        the_first_rank_gives_up_and_says_so,
        ranks_that_switched_stay_so,
        a_rank_that_has_announced_itself_stays_so,
    )
}
