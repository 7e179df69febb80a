"""Views of the states that a pool hands out to its layers, and what happens to it in between."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from random import Random
from typing import Any

import torch

from .rig import Rig

Step = tuple[str, int]
"""What is done, and for which layer."""

ASK, INFER, EXCHANGE, MOVED = "ask", "ask in inference mode", "exchange", "ask one that moves them"


def draw(random: Random) -> tuple[Step, ...]:
    """A dozen steps, most of which ask for the views of a layer."""
    steps = random.choices((ASK, INFER, EXCHANGE, MOVED), (4, 4, 1, 1), k=12)
    return tuple((step, random.randrange(_layers())) for step in steps)


def asked(steps: Sequence[Step]) -> list[Any]:
    """All that can be told of the views that each step gets."""
    pool = _rig().pool.mamba_pool
    mine, other = pool.mamba_cache, _speculative(pool)
    found = []
    try:
        for step, layer in steps:
            if step == EXCHANGE:
                pool.mamba_cache = mine if pool.mamba_cache is other else other
                continue
            mode = torch.inference_mode() if step == INFER else contextlib.nullcontext()
            with mode, _moved(pool) if step == MOVED else contextlib.nullcontext():
                views = pool.mamba2_layer_cache(layer)
                views.temporal.mul_(1)  # must be allowed, in whichever mode they were made
                found.append(_told(views))
    finally:
        pool.mamba_cache = mine
    return found


@contextlib.contextmanager
def _moved(pool: Any) -> Iterator[None]:
    """As a pool of a class of its own that holds its states elsewhere for now."""
    own, convs = type(pool), pool.mamba_cache.conv
    before = list(convs)
    convs[:] = _elsewhere(pool)
    pool.__class__ = type("Moving", (own,), {})
    try:
        yield
    finally:
        pool.__class__ = own
        convs[:] = before


def _told(state: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"class": type(state).__qualname__}
    for field in fields(state):
        value = getattr(state, field.name)
        told[field.name] = [*map(_view, value)] if isinstance(value, list) else _view(value)
    return told


def _view(tensor: Any) -> Any:
    if tensor is None:
        return None
    layout = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), str(tensor.dtype))
    return [*layout, tensor.is_inference()]


@cache
def _rig() -> Rig:
    return Rig()


def _layers() -> int:
    return _rig().size.layers


@cache
def _speculative(pool: Any) -> Any:
    """The states of a speculative server in place of the pool's own."""
    own = pool.mamba_cache
    return type(pool).SpeculativeState(
        conv=[torch.zeros_like(conv) for conv in own.conv],
        temporal=torch.zeros_like(own.temporal),
        intermediate_ssm=torch.zeros_like(own.temporal),
        intermediate_conv_window=[torch.zeros_like(conv) for conv in own.conv],
    )


@cache
def _elsewhere(pool: Any) -> list[torch.Tensor]:
    return [torch.zeros_like(conv) for conv in pool.mamba_cache.conv]
