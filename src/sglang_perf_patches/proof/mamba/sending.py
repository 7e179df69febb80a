"""Requests that a prefill server sends to a decode server, by sglang's own scheduler code."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from . import scheduling
from .alike import Played
from .batches import Request
from .play import Play

TRANSFERS = (
    (Request(65), Request(9), Request(70, 64)),
    (Request(130), Request(128, 128), Request(1)),
    (Request(64), Request(63), Request(200)),
)
"""Prefills of as many requests each, one after the other on one server."""


class Sender:
    """What a request sends with, instead of a network; it keeps what it is given.

    As Mooncake's, it takes page indices that are still being copied.
    """

    supports_host_tensor_indices = True
    kv_mgr = SimpleNamespace(enable_all_cp_ranks_for_transfer=False)

    def __init__(self) -> None:
        """Nothing has been sent."""
        self.sent: list[Any] = []

    def should_send_kv_chunk(self, *_: Any) -> bool:
        """Every chunk."""
        return True

    def get_max_transfer_tokens(self) -> None:
        """No bound."""

    def send(self, pages: Any, state: Any, **rest: Any) -> None:
        """As it is: a transfer reads it at its leisure."""
        self.sent.append((pages, state, {**rest, "indices_event": "indices_event" in rest}))


class Waiting(Sender):
    """One for which the scheduler waits for the page indices."""

    supports_host_tensor_indices = False


class Together(Sender):
    """One whose transfer is shared by all ranks of context parallelism."""

    kv_mgr = SimpleNamespace(enable_all_cp_ranks_for_transfer=True)


def sent(
    play: Play, prefills: Sequence[Sequence[Request]], sender: type[Sender] = Sender
) -> Played:
    """What each request sends, and what waits for the device meanwhile.

    Not counted is the first prefill, whose requests a server sends before it keeps any copies.
    """
    pool = play.rig.pool
    scheduler = scheduler_of(pool)
    play.counter.own(pool.req_to_token)
    senders: list[Sender] = []
    waited: list[str] = []
    for number, requests in enumerate(prefills):
        with play.counter, play.counter.paused():
            _used(pool, number)
            batch, _ = scheduling.scheduled(play.rig, requests, clear=False)
        for request in batch.reqs:
            request.disagg_kv_sender = sender()
            senders.append(request.disagg_kv_sender)
            with play.counting() as waits, without_a_gpu():
                scheduler.send_kv_chunk(request, last_chunk=True)
            waited += waits if number else []
    return [_plain(sender.sent) for sender in senders], waited


def without_a_gpu() -> AbstractContextManager[Any]:
    """Events of CUDA that are over at once."""
    return mock.patch.multiple(torch.cuda, Event=mock.Mock, current_stream=mock.Mock())


def _used(pool: Any, number: int) -> None:
    """An empty pool that hands out other slots and rows each time."""
    pool.clear()
    slots = getattr(pool, "mamba_allocator", pool.mamba_pool)  # since 0.5.13
    slots.free_slots = slots.free_slots.roll(3 * number + 1)
    pool.free_slots = pool.free_slots[number:] + pool.free_slots[:number]


def scheduler_of(pool: Any) -> Any:
    """The part of sglang's scheduler that sends, with this pool."""
    module = importlib.import_module("sglang.srt.disaggregation.prefill")
    base = importlib.import_module("sglang.srt.disaggregation.base.conn")
    made = type("Scheduler", (module.SchedulerDisaggregationPrefillMixin,), {})()
    kv_args = SimpleNamespace(state_types=[base.StateType.MAMBA])
    queue = SimpleNamespace(kv_manager=SimpleNamespace(kv_args=kv_args))
    vars(made).update(
        req_to_token_pool=pool,
        token_to_kv_pool_allocator=scheduling.allocator("cpu", None),
        disagg_metadata_buffers=SimpleNamespace(set_buf=lambda _: None),
        disagg_prefill_bootstrap_queue=queue,
        disagg_prefill_pending_chunk_rids=set(),
        enable_staging=False,
        kv_checksum_computer=None,
    )
    return made


def _plain(value: Any) -> Any:
    """Arrays by their dtype, shape and numbers, also in lists."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "dtype"):
        return str(value.dtype), list(value.shape), value.tolist()
    return value
