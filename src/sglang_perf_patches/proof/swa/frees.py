"""Random episodes, with the pools after every step and what waits for the GPU in their frees."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from . import episodes
from .decode_worker import DecodeWorker
from .witness import Witness

_INTERVAL = "SGLANG_SWA_EVICTION_INTERVAL"


def states(seed: int, count: int, sorts: bool = True, grouped: bool = True) -> dict[str, Any]:
    """Play random episodes; the pools after each step, and what waited for the GPU in frees.

    Args:
        seed: of the episodes.
        count: how many.
        sorts: as in `Shape`.
        grouped: whether requests end in a group of frees, as in stock's scheduler.

    Returns:
        ``digest`` of free pages of both pools, their order, and of the mapping after every step;
        ``steps``; ``waits``, by what waited.
    """
    digest, steps = hashlib.sha256(), 0
    waits: Counter[str] = Counter()
    check = Witness.check

    def watched(self: Witness) -> None:
        nonlocal steps
        check(self)
        steps += 1
        for part in _state(self.worker):
            digest.update(part.numpy().tobytes() + b"|")

    finish, shape, init = DecodeWorker.finish, episodes.shape, DecodeWorker.__init__

    def made(self: DecodeWorker, *args: Any) -> None:
        init(self, *args)
        _watch(self.allocator, waits)

    def in_a_group(self: DecodeWorker, reqs: Any) -> None:
        self.allocator.free_group_begin()
        finish(self, reqs)
        self.allocator.free_group_end()

    # From 0.5.14 on stock evicts in every 128th step, which few episodes have.
    often = os.environ.get(_INTERVAL)
    os.environ[_INTERVAL] = "3"
    Witness.check = watched  # type: ignore[method-assign]
    DecodeWorker.__init__ = made  # type: ignore[assignment, method-assign]
    episodes.shape = lambda **named: replace(shape(**named), sorts=sorts)
    if grouped:
        DecodeWorker.finish = in_a_group  # type: ignore[method-assign]
    try:
        for number in range(count):
            episodes.play(Random(seed + number))  # noqa: S311
    finally:
        if often is None:
            del os.environ[_INTERVAL]
        else:
            os.environ[_INTERVAL] = often
        Witness.check = check  # type: ignore[method-assign]
        DecodeWorker.finish = finish  # type: ignore[method-assign]
        DecodeWorker.__init__ = init  # type: ignore[method-assign]
        episodes.shape = shape
    return {"digest": digest.hexdigest(), "steps": steps, "waits": dict(waits)}


def _state(worker: DecodeWorker) -> list[Any]:
    allocator = worker.allocator
    parts = (allocator.full_attn_allocator, allocator.swa_attn_allocator)
    lists = [part.free_pages for part in parts]
    lists += [part.release_pages for part in parts if part.release_pages is not None]
    return [*(pages.long() for pages in lists), allocator.full_to_swa_index_mapping.long()]


def _watch(allocator: Any, waits: Counter[str]) -> None:
    """Count, within this allocator's frees, calls whose result has a length of the GPU's.

    On the instance: what is patched are the functions of its class, which nobody else may change.
    """

    def watched(function: Any) -> Any:
        def call(*args: Any) -> Any:
            with _Waits(waits):
                return function(*args)

        return call

    for name in ("free", "free_swa", "free_group_end"):
        setattr(allocator, name, watched(getattr(allocator, name)))


class _Waits(TorchFunctionMode):  # type: ignore[misc]
    """Counts what a GPU's host waits for: a length that the data decides, a value from the host."""

    def __init__(self, waits: Counter[str]) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in {"unique", "_unique_impl", "_return_output", "nonzero", "masked_select", "item"}:
            self._waits[name] += 1
        elif name in {"__getitem__", "__setitem__"} and isinstance(args[1], torch.Tensor):
            if args[1].dtype == torch.bool:
                self._waits["mask"] += 1
            elif name == "__setitem__" and not isinstance(args[2], torch.Tensor):
                self._waits["number from the host"] += 1
        return func(*args, **(kwargs or {}))
