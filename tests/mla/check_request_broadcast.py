"""When ranks keep stock's broadcast."""

import errno
import os
from functools import partial
from typing import Any
from unittest import mock

import dead_ranks

import sglang_perf_patches
from sglang_perf_patches.sets.mla import request_broadcast as body
from sglang_perf_patches.sets.mla.peers import STOCKS
from sglang_perf_patches.verify.comparing import live
from tests.proof.mla.request_broadcast import LARGE, PATCH, Round, ranks

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


def the_first_rank_gives_up_and_all_say_so() -> None:
    def before(rank: int, number: int) -> None:
        if rank == 1 and number == 0:
            sglang_perf_patches.deactivate()
        if rank != 1 and number in {0, len(ROUNDS) - 1}:
            dead_ranks.require_state(PATCH, STOCKS if number else "")

    with mock.patch.object(body, "_PATIENCE_S", -1.0):
        _all_by_gloo(before=before, count=3)


def a_queue_without_memory_is_not_used() -> None:
    """Only the first rank asks for it."""
    full = OSError(errno.ENOSPC, "no space")

    def before(rank: int, number: int) -> None:
        if number == len(ROUNDS) - 1:
            dead_ranks.require_state(PATCH, "the ranks' queue does not fit into /dev/shm")

    with mock.patch.object(os, "posix_fallocate", side_effect=full):
        _all_by_gloo(before=before)


def large_requests_in_a_small_memory() -> None:
    """Where ``/dev/shm`` has less than the queue: `test_ranks` runs this."""
    rounds = [*ROUNDS, *[(["x" * (LARGE // 5 * 4 - 1000)], [])] * 8]
    with live(PATCH, ran=None):
        for rank in ranks(rounds):
            assert rank["gloo"] >= len(rounds)


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

    def late(group: Any) -> bool:
        told.append(group)
        return len(told) > 1 and _all_have(group)

    def before(rank: int, number: int) -> None:
        if number == 1:
            sglang_perf_patches.deactivate()

    with mock.patch.object(body.Announced, "all_have", late), live(PATCH, ran=None):
        switched = ranks(ROUNDS, before=before)
    assert [rank["got"] for rank in switched] == [WANTED, WANTED]
    assert all(rank["gloo"] < len(ROUNDS) for rank in switched)


_all_have = body.Announced.all_have
CHECKS = {
    **dead_ranks.CHECKS,
    "ranks that can't watch": partial(dead_ranks.ranks_that_cannot_watch_are_gated, PATCH),
} | {
    check.__name__: check
    for check in (
        a_rank_without_the_patch,
        ranks_without_a_queue,
        the_first_rank_gives_up_and_all_say_so,
        a_queue_without_memory_is_not_used,
        ranks_that_switched_stay_so,
        a_rank_that_has_announced_itself_stays_so,
    )
}
