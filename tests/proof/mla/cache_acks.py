"""What ranks agree on through shared memory is what stock's reduction gives.

Forked processes are the ranks (`forked`). Their process group, its store and the shared memory are
real, and so are the cache's methods. Its transfers and its tree have stand-ins.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from sglang.srt.mem_cache import unified_radix_cache
from torch import distributed

from sglang_perf_patches.verify.comparing import require, same

from . import forked

PATCH = "mla.cache-acks"
LARGE = 64
"""Numbers for which the shared memory has no room."""


class Play(NamedTuple):
    """`rounds` of a scheduler's loop, drawn from `seed`; a `slow` rank sleeps before some."""

    seed: str
    rounds: int
    has_storage: bool = False
    slow: int | None = None


EDGES = (Play("few", 2), Play("plain", 40), Play("storage", 40, has_storage=True))


def drawn(random: Random) -> Play:
    return Play(f"{random.random()}", random.randint(3, 30), random.random() < 0.5)


def ranks(
    asked: Play,
    before: Callable[[int, int], None] = lambda *_: None,
    *,
    count: int = 2,
    killed: int | None = None,
    group: str = "attn_tp_group",
) -> list[dict[str, Any]]:
    """What each rank ``got``, and how often it used ``gloo``; ``left``, how often it has to.

    `before` is called in each rank's process before each round, with the rank and the round.
    """
    return forked.ranks(count, partial(play, asked, before, group), killed)


def play(
    asked: Play, before: Callable[[int, int], None], group: str, rank: int, told: dict[str, Any]
) -> None:
    """One rank: in each round it counts what is ready, and at times reduces something else."""
    cache, chance, all_of = _cache(asked, group), Random(f"{asked.seed} {rank}"), Random(asked.seed)
    told |= {"got": [], "left": 0}
    with mock.patch.object(distributed, "all_reduce", side_effect=distributed.all_reduce) as gloo:
        try:
            for number in range(asked.rounds):
                before(rank, number)
                if rank == asked.slow and not chance.randrange(50):
                    time.sleep(0.01)
                _let_end(cache.cache_controller, chance)
                counts = cache._sync_hicache_ready_counts()
                told["got"].append([int(counts[0]), int(counts[1]), *map(int, counts[2])])
                other, is_left = _other(all_of, chance)
                if other is not None:
                    cache._all_reduce_attn_groups(*other)
                    told["got"].append(other[0].tolist())
                    told["left"] += is_left
        finally:
            told["gloo"] = gloo.call_count


def _cache(asked: Play, group: str) -> Any:
    """A cache of the release's class, with all that its reductions read."""
    cache: Any = object.__new__(unified_radix_cache.UnifiedRadixCache)
    queues = ("prefetch_hit", "ack_prefetch", "ack_backup", "host_mem_release")
    controller = SimpleNamespace(
        ack_write_queue=[],
        ack_load_queue=[],
        extra_host_mem_release_queues={"mamba": queue.Queue()},
        **{f"{name}_queue": queue.Queue() for name in queues},
    )
    groups = {"attn_cp_group": None, "attn_tp_group": None, "tp_group": None}
    for name, value in {
        "tree_core": SimpleNamespace(write_back_duplicate_reclaim_digest=len(asked.seed)),
        **groups,
        group: distributed.group.WORLD,
        "tp_world_size": distributed.get_world_size() if group == "tp_group" else 1,
        "pp_rank": 0,
        "pp_size": 1,
        "pp_group": None,
        "host_memory_mode": "cache",
        "enable_storage": asked.has_storage,
        "cache_controller": controller,
    }.items():
        setattr(cache, name, value)
    return cache


def _let_end(controller: Any, chance: Random) -> None:
    for acks in (controller.ack_write_queue, controller.ack_load_queue):
        del acks[: chance.randrange(3)]
        for _ in range(chance.randrange(3)):
            has_ended = chance.random() < 0.7
            acks.append(SimpleNamespace(finish_event=SimpleNamespace(query=lambda e=has_ended: e)))
    for each in (controller.ack_backup_queue, controller.prefetch_hit_queue):
        for _ in range(chance.randrange(3)):
            each.put(0)


def _other(all_of: Random, chance: Random) -> tuple[tuple[Any, Any] | None, bool]:
    """Another reduction that the cache may make now, and whether only gloo will do for it."""
    kind = all_of.choice(("none", "none", "few", "largest", "one", "many", "wide"))
    count = {"few": all_of.randint(1, 30), "many": LARGE}.get(kind, 3)
    numbers = torch.tensor([chance.randrange(-9, 1 << 40) for _ in range(count)])
    if kind == "one":
        numbers = (numbers[0] % 100).to(torch.int32)
    elif kind == "wide":
        numbers = numbers.reshape(1, 3)
    operation = distributed.ReduceOp.MAX if kind == "largest" else distributed.ReduceOp.MIN
    return None if kind == "none" else (numbers, operation), kind != "few"


def _got(through_memory: bool, asked: Play) -> list[Any]:
    played = [rank for group in ("attn_tp_group", "tp_group") for rank in ranks(asked, group=group)]
    for rank in played:
        made = len(rank["got"])
        wanted = min(2, made - rank["left"]) + rank["left"] if through_memory else made
        require(rank["gloo"] == wanted, f"{rank['gloo']} of {made} reductions used gloo")
    return [rank["got"] for rank in played]


def numbers(inputs: Any) -> int:
    some = [*EDGES, *inputs(drawn)]
    return same(PATCH, partial(_got, True), some, ran=None, stock=partial(_got, False))


CHECKS = {"numbers": numbers}
"""What both ranks agree on, with stock's reduction and through shared memory."""
