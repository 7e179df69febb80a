"""What the checks of several mlx patches share: schedules on stock's runner and the patched one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import mlx.core as mx

from .. import Different, Inputs, Missing, comparing
from ..comparing import live, require, require_same, some
from . import cases, models, rig
from .cases import Step
from .models import Model
from .rig import Player

FEW = 3  # drawn schedules that run again, with another model or in another set-up
# What stock gave the first time that this process ran a schedule, digests and tokens. A model of
# the same making always has the same weights, so every patch is compared with the same results.
_STOCK: dict[str, dict[str, Any]] = {}
_AGAIN = 8  # times that stock repeats a schedule that differs, if it may differ from itself there


def same(
    patch: str,
    model: Model,
    schedules: Sequence[Sequence[Step]],
    *,
    radix: bool = False,
    sampling: bool = False,
    ran: bool = True,
) -> int:
    """As `comparing.same`, each schedule on a fresh `Player`; stock runs it once for all patches.

    With `sampling` it does nothing on a release that can't sample. `ran` is `comparing.live`'s. It
    raises what `comparing.same` and `where_stock_repeats` do.
    """
    if sampling and not can_sample():
        return 0
    options = {"radix": radix, "sampling": sampling}

    def anew(schedule: Sequence[Step]) -> dict[str, Any]:
        return asdict(Player(model, **options).play(schedule))

    def of_stock(schedule: Sequence[Step]) -> dict[str, Any]:
        key = repr((model.made_as, options, schedule))
        if key not in _STOCK:
            _STOCK[key] = anew(schedule)
        return _STOCK[key]

    with where_stock_repeats(model, lambda: [*map(anew, schedules)]):
        return comparing.same(patch, anew, schedules, ran=ran, stock=of_stock)


def episodes(patch: str, inputs: Inputs, *, needs_pool: bool = False) -> int:
    """Random episodes with the radix cache for each kind of model; some patches need its pool."""
    drawn = inputs(cases.random_episodes)
    hits = [cases.HITTING, *inputs(cases.random_hits)]
    compared = 0
    with models.model("qwen3", "float32") as model:
        compared += same(patch, model, [*hits, *drawn], radix=True)
        compared += same(patch, model, [cases.SCRIPTED, cases.EXTENDING], ran=not needs_pool)
        sampled = some(inputs, [cases.HITTING, cases.EXTENDING])
        compared += same(patch, model, sampled, radix=True, sampling=True)
    others = (
        ("qwen3", "bfloat16", False),
        ("qwen3", "bfloat16", True),
        *((name, "float32", False) for name in further_models()),
    )
    for name, dtype, quantized in some(inputs, others):
        with models.model(name, dtype, quantized=quantized) as model:
            ran = not needs_pool or name != "gpt_oss"  # stock makes no pool for windows
            compared += same(patch, model, [hits[-1], *drawn[:2]], radix=True, ran=ran)
    return compared


def near(
    patch: str,
    model: Model,
    play: Callable[[], Sequence[tuple[Any, Sequence[mx.array]]]],
    part: float,
    *,
    ran: bool | None = True,
) -> None:
    """Play on stock, then patched, for a patch whose shapes select other kernels on a GPU.

    There, logits may differ by this `part` of the largest one; on a CPU, results must have the same
    bits. `play` returns the results and logits of each input. `ran` is `comparing.live`'s. It
    raises `Different`, or what `where_stock_repeats` does.
    """
    expected = play()
    with live(patch, ran=ran):
        actual = play()
    with where_stock_repeats(model, lambda: [results for results, _ in play()]):
        if on_cpu():
            require_same(patch, [each for each, _ in expected], [each for each, _ in actual])
            return
        for (_, one), (_, other) in zip(expected, actual, strict=True):
            for number, (logits, patched) in enumerate(zip(one, other, strict=True)):
                is_near = mx.max(mx.abs(logits - patched)) <= part * mx.max(mx.abs(logits))
                require(bool(is_near.item()), f"{patch}: logits {number} are not close")


@contextmanager
def where_stock_repeats(model: Model, play: Callable[[], Any]) -> Iterator[None]:
    """Within the block, a difference is the patch's only if stock gives the same values each time.

    On a CPU it does. With MLX for CUDA it does not for each model: see `results/mlx.md`. If what
    `play` returns on stock differs from one time to the next, it raises `Missing` instead of the
    block's `Different`.
    """
    try:
        yield
    except Different:
        if on_cpu():
            raise
        first = play()
        for number in range(_AGAIN):
            # Fill MLX's free buffers with a value that shows reads before writes.
            value = float(number) if number % 2 else float("nan")
            mx.clear_cache()
            mx.eval([mx.full((1 << bits,), value) for bits in range(8, 23) for _ in range(4)])
            if comparing.differs(first, play()) is not None:
                name, device = model.config["model_type"], mx.default_device()
                raise Missing(
                    f"stock gives other values each time on {device} with layers as {name}'s"
                ) from None
        raise


def on_cpu() -> bool:
    """Whether MLX computes on the CPU, where equal inputs give equal bits."""
    return bool(mx.default_device() == mx.Device(mx.cpu))


def can_sample() -> bool:
    """Whether the release can sample tokens; it does so by position."""
    return find_spec(rig.SAMPLING) is not None


def further_models() -> list[str]:
    """Models with the other kinds of layer that the release can batch."""
    caches: Any = import_module("sglang.srt.hardware_backend.mlx.kv_cache")
    names = ["qwen3_next"] if hasattr(caches, "MlxModelCacheLayout") else []
    return [*names, "gpt_oss"] if hasattr(caches, "WindowedAttentionKVCache") else names


def with_logits(player: Player, schedule: Sequence[Step]) -> tuple[dict[str, Any], list[mx.array]]:
    """What a schedule gives with what is live, and the logits of each forward pass."""
    logits: list[mx.array] = []
    player.note = logits.append
    return asdict(player.play(schedule)), logits
