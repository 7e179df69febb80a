"""When ranks keep stock's reduction, and what becomes of them if one of them dies."""

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from dead_ranks import (
    END,
    Clock,
    killing,
    ranks_that_cannot_watch_are_gated,
    require_raised,
    require_state,
)

import sglang_perf_patches
from sglang_perf_patches.sets.mla import cache_acks as body
from sglang_perf_patches.sets.mla.peers import STOCKS
from sglang_perf_patches.verify.comparing import live
from tests.proof.mla.cache_acks import PATCH, Play, ranks

_PLAY = Play("checks", 12)
_LAST = _PLAY.rounds - 1


def _all_by_gloo(reason: str, without: int | None = None) -> None:
    wanted = ranks(_PLAY)

    def before(rank: int, number: int) -> None:
        if rank == without and number == 0:
            sglang_perf_patches.deactivate()
        elif rank != without and number in {0, _LAST}:
            require_state(PATCH, reason if number else "")

    with live(PATCH, ran=None):
        told = ranks(_PLAY, before)
    assert told == wanted
    assert all(rank["gloo"] >= _PLAY.rounds for rank in told)


def a_rank_without_the_patch() -> None:
    for without in range(2):
        _all_by_gloo(STOCKS, without)


NO_MEMORY = {
    "memory that is not there": (os, "posix_fallocate", OSError(errno.ENOSPC, "no space")),
    "memory that a rank can't open": (body, "opened", FileNotFoundError),
    # What a rank needs it has before the others count on it.
    "no thread to spare": (body, "Peers", RuntimeError("can't start new thread")),
}


def without_memory(owner: Any, name: str, error: Any) -> None:
    with mock.patch.object(owner, name, side_effect=error):
        _all_by_gloo("the ranks have no memory that they share")


def a_rank_that_begins_later() -> None:
    """All go on with gloo: it would wait for a rank that does not."""
    wanted = ranks(_PLAY)
    for late in range(2):
        for at in (1, 2, 3):

            def before(rank: int, number: int, late: int = late, at: int = at) -> None:
                if rank == late and number == 0:
                    sglang_perf_patches.deactivate()
                elif rank == late and number == at:
                    sglang_perf_patches.activate(PATCH)

            with live(PATCH, ran=None):
                assert ranks(_PLAY, before) == wanted


def ranks_that_have_begun_stay_so() -> None:
    """Also if one of them is to lose the patch before they switch."""
    wanted = ranks(_PLAY)
    for at in (1, 2, _LAST):

        def before(rank: int, number: int, at: int = at) -> None:
            if number == at:
                sglang_perf_patches.deactivate()
                state = sglang_perf_patches.report().of(PATCH)
                assert state.reason.endswith("waits until the server ends"), (rank, state)

        with live(PATCH, ran=None):
            told = ranks(_PLAY, before)
        assert [rank["got"] for rank in told] == [rank["got"] for rank in wanted]
        assert all(rank["gloo"] < one["gloo"] for rank, one in zip(told, wanted, strict=True))


def nothing_is_left_in_shared_memory() -> None:
    """The ranks' memory has no name in /dev/shm, where it would outlive a rank that is killed."""

    def before(_rank: int, number: int) -> None:
        if number == _LAST:
            mapped = Path("/proc/self/maps").read_text().splitlines()
            assert any("/memfd:mla.cache-acks" in line for line in mapped)
            assert not [line for line in mapped if "/dev/shm/" in line and "/sem." not in line]

    with live(PATCH, ran=None):
        ranks(_PLAY, before)


def the_others_raise() -> None:
    for count, killed in ((2, 0), (2, 1), (3, 0), (3, 2)):
        clock = Clock()
        before = partial(killing, clock, killed)
        with live(PATCH, ran=None):
            told = ranks(Play("deaths", 2 * END), before, count=count, killed=killed)
        for each in told:
            require_raised(each, clock)


def many_rounds(count: int, plays: int, rounds: int) -> int:
    """`test_ranks` runs this: one of the ranks is slow. How many numbers were as stock's."""
    compared = 0
    for seed in range(plays):
        asked = Play(f"{seed}", rounds, has_storage=bool(seed % 2), slow=seed % count)
        wanted = ranks(asked, count=count)
        with live(PATCH, ran=None):
            told = ranks(asked, count=count)
        for rank, one in zip(told, wanted, strict=True):
            assert rank["got"] == one["got"]
            assert rank["gloo"] == rank["left"] + 2
            compared += len(rank["got"])
    return compared


CHECKS = {
    check.__name__: check
    for check in (
        a_rank_without_the_patch,
        a_rank_that_begins_later,
        ranks_that_have_begun_stay_so,
        nothing_is_left_in_shared_memory,
        the_others_raise,
    )
}
CHECKS |= {what: partial(without_memory, *how) for what, how in NO_MEMORY.items()}
CHECKS["ranks that can't watch"] = partial(ranks_that_cannot_watch_are_gated, PATCH)
