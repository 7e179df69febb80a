"""Requests that ranks get through shared memory are those that stock broadcasts.

Forked processes are the ranks (`forked`). Their process group, its store and the queue are real,
and so are the receiver's methods, and how images reach it. What they ask of the server has
stand-ins.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import torch
from sglang.srt.distributed.device_communicators import shm_broadcast
from sglang.srt.managers import io_struct, mm_utils, schedule_batch
from sglang.srt.managers.scheduler_components import request_receiver
from torch import distributed

from sglang_perf_patches.verify.comparing import require, same

from . import forked

PATCH = "mla.request-broadcast"
LARGE = 5_000_000
"""Bytes of a request that does not fit into a part of the queue: 4 MB."""

Round = tuple[list[Any], list[Any]]
"""Requests that came to the first rank, and those that it decided on itself."""

_INLINE, _SHARED, _GONE = "in the request", "in a segment of their own", "in one that is gone"
"""Where the pixels of an image are when a request with it comes."""

EDGES: tuple[list[Round], ...] = (
    [([], [])] * 40,
    [*[([], [])] * 9, (["a"], ["of its own"]), ([], ["of its own"]), (["x" * LARGE, "b"], [])] * 2,
    [([], [])] * 9
    + [([{"pixels": 9, "are": where}], []) for where in (_INLINE, _SHARED, _GONE)] * 2
    + [([{"pixels": LARGE // 4, "are": _INLINE}], [])],
)


def drawn(random: Random) -> list[Round]:
    """Rounds of a scheduler's loop, most of them without a request."""

    def some(share: float) -> list[Any]:
        count = random.randint(1, 3) if random.random() < share else 0
        images = {"pixels": random.randint(1, 99), "are": random.choice((_INLINE, _SHARED, _GONE))}
        text = {"rid": f"{random.random()}", "ids": [1] * random.randint(1, 99)}
        return [random.choice((text, images)) for _ in range(count)]

    return [(some(0.3), some(0.1)) for _ in range(random.randint(5, 40))]


def ranks(
    rounds: list[Round],
    before: Callable[[int, int], None] = lambda *_: None,
    *,
    count: int = 2,
    killed: int | None = None,
    **group: Any,
) -> list[dict[str, Any]]:
    """What each rank gets in each round, how often it used gloo, and what ended it.

    `before` is called in each rank's process before each round, with the rank and the round;
    `group` changes the group of ranks that the receiver sees.
    """
    return forked.ranks(count, partial(play, rounds, before, group), killed)


def play(
    rounds: list[Round],
    before: Callable[[int, int], None],
    changes: dict[str, Any],
    rank: int,
    told: dict[str, Any],
) -> None:
    """One rank, which tells what it ``got`` and how often it used ``gloo``."""
    world, count = distributed.group.WORLD, distributed.get_world_size()
    queue = shm_broadcast.MessageQueue.create_from_process_group(world, 1 << 22, 6)
    group = SimpleNamespace(world_size=count, rank=rank, rank_in_group=rank, ranks=[*range(count)])
    vars(group).update({"cpu_group": world, "mq_broadcaster": queue} | changes)
    parallel = SimpleNamespace(attn_dp_enabled=False, tp_size=group.world_size, tp_group=group)
    receiver: Any = object.__new__(request_receiver.SchedulerRequestReceiver)
    object.__setattr__(receiver, "model_config", SimpleNamespace(is_multimodal=True))
    request_receiver.get_parallel = lambda: parallel
    mm_utils.get_serving = lambda: SimpleNamespace(skip_tokenizer_init=False)
    mm_utils._is_default_tensor_transport = False  # shared memory, as on one host
    told["got"] = []
    with mock.patch.object(distributed, "broadcast", side_effect=distributed.broadcast) as gloo:
        try:
            for number, (came, own) in enumerate(rounds):
                before(rank, number)
                given = ([*map(_came, came)], [*map(_came, own)]) if rank == 0 else (None, [])
                requests = receiver._broadcast_reqs_across_ranks(*given)
                receiver._finalize_shm_features(requests)
                told["got"].append([_told(each) for each in requests])
        finally:
            told["gloo"] = gloo.call_count


def _came(request: Any) -> Any:
    if "pixels" not in request:
        return request
    item = schedule_batch.MultimodalDataItem(modality=schedule_batch.Modality.IMAGE)
    item.feature = torch.arange(request["pixels"], dtype=torch.float32)
    if request["are"] != _INLINE:
        item.feature = mm_utils.ShmPointerMMData(item.feature)
    kind = io_struct.TokenizedGenerateReqInput
    made = kind(**{each.name: None for each in msgspec.structs.fields(kind) if each.required})
    made.mm_inputs = schedule_batch.MultimodalProcessorOutput(mm_items=[item])
    came = pickle.loads(pickle.dumps(made))
    if request["are"] == _GONE:
        came.mm_inputs.mm_items[0].feature.close_and_unlink()
    return came


def _told(request: Any) -> Any:
    """What JSON can hold of a request that has reached a rank."""
    if not isinstance(request, io_struct.TokenizedGenerateReqInput):
        return request
    if isinstance(request.mm_inputs, io_struct.MMInputsProcessError):
        return request.mm_inputs.message
    (item,) = request.mm_inputs.mm_items
    return [*item.feature.shape, float(item.feature.sum())]


def _got(through_memory: bool, rounds: list[Round]) -> list[Any]:
    played = ranks(rounds)
    for rank in played:
        is_few = rank["gloo"] < len(rounds)
        require(is_few == through_memory, f"{rank['gloo']} of {len(rounds)} rounds used gloo")
    return [rank["got"] for rank in played]


def requests(inputs: Any) -> int:
    some = [*EDGES, *([([], [])] * 8 + rounds for rounds in inputs(drawn))]
    return same(PATCH, partial(_got, True), some, ran=None, stock=partial(_got, False))


CHECKS = {"requests": requests}
"""What both ranks get, with stock's broadcast and through shared memory."""
