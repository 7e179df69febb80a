"""Random traffic on MLX's real worker: stock, and with patches of the set live together.

What the scheduler would do is made in `traffic_worker`.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import job_tools  # noqa: F401 -- lends what stands in for sglang
import mlx.core as mx
from traffic_worker import Outcome, Worker

import sglang_perf_patches
from sglang_perf_patches.live import engine
from sglang_perf_patches.sets.mlx import grouping
from sglang_perf_patches.sets.mlx.batched_prefill.rows import Part
from sglang_perf_patches.sets.mlx.kv_arena.step import GroupedStep
from sglang_perf_patches.sets.mlx.next_turn import body as next_turn
from sglang_perf_patches.sets.mlx.pool_write import body as pool_write
from sglang_perf_patches.verify.mlx import models

SPARE = 512 << 10
"""Bytes that a worker may hold beyond what is counted; stock itself holds up to a third of that."""


def traffic(model: str, selections: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """For each selection, what differs from stock ("" for nothing) and which patches have run."""
    results: dict[str, Any] = {}
    with _set_up(model) as made:
        stock = [_played("none", made, seed)[0] for seed in seeds]
        results["stock"] = {"differs": _difference(stock, stock), "ran": []}
        for selection in selections:
            played = [_played(selection, made, seed) for seed in seeds]
            results[selection] = {
                "differs": _difference(stock, [outcome for outcome, _ in played]),
                "ran": sorted({patch for _, ran in played for patch in ran}),
            }
    return results


def broken(model: str, selection: str, seeds: Sequence[int]) -> dict[str, str]:
    """What differs with a selection and one fault at a time; "whole" has none."""
    turns, grouped, fill = next_turn._Turns.__init__, GroupedStep.__init__, Part.__call__

    def puts_all(self: Any, ids: Any, *, cache: Any) -> Any:
        return fill(replace(self, start=0), ids, cache=cache)

    def loses_writes(self: Any) -> None:
        self.postponed.clear()

    def evaluates_nothing(self: Any, _: Any) -> None:
        turns(self, SimpleNamespace(eval=lambda *_: None))

    def unordered(self: Any, *words: Any) -> None:
        grouped(self, *words)
        self._back = None

    faults: dict[str, tuple[Any, str, Any]] = {
        "whole": (GroupedStep, "__init__", grouped),
        "results stay in the order of the groups": (GroupedStep, "__init__", unordered),
    }
    if model == "qwen3":
        faults |= {
            "a row puts its prefix where it is already": (Part, "__call__", puts_all),
            "a postponed write is lost": (pool_write._Writes, "queue", loses_writes),
        }
    else:
        faults["a kept turn is not evaluated"] = (next_turn._Turns, "__init__", evaluates_nothing)
    results = {}
    with _set_up(model) as made:
        stock = [_played("none", made, seed)[0] for seed in seeds]
        for what, fault in faults.items():
            with mock.patch.object(*fault):
                outcomes = [
                    _played(selection, made, seed, prefixes_held=model == "qwen3")[0]
                    for seed in seeds
                ]
            results[what] = _difference(stock, outcomes)
    return results


@contextmanager
def _set_up(model: str) -> Iterator[Any]:
    """The model; requests far shorter than those that pay on a GPU are groups by themselves."""
    with models.model(model, "float32") as made, mock.patch.object(grouping, "AT_LEAST", 128):
        gc.collect()
        gc.freeze()  # the collector need not walk what was imported each time that memory is noted
        yield made


def _played(
    selection: str, made: Any, seed: int, *, prefixes_held: bool = False
) -> tuple[Outcome, list[str]]:
    """An outcome, and the patches that ran; for `prefixes_held` see `_hold_prefixes`."""
    gc.collect()
    sglang_perf_patches.activate(selection, strict=True)
    worker = Worker(made, seed)
    if prefixes_held:
        _hold_prefixes(worker.runner)
    outcome = worker.run()
    del worker
    report = engine.report()
    ran = [each.id for each in report.patches if each.ran] if report else []
    gc.collect()
    sglang_perf_patches.deactivate()
    return outcome, ran


def _hold_prefixes(runner: Any) -> None:
    """Have prompts begin with caches that hold their prefix, as another patch may hand over."""
    layout = runner._cache_layout

    def cache(slots: list[int], _: int) -> list[Any]:
        held: list[Any] = runner._acquire_cache()
        for layer in layout.attention_layer_indices:
            both = runner._attention_kv_pool.get_kv(
                layout.full_kv_pool_index(layer), mx.array(slots, dtype=mx.int32)
            )
            held[layer].update_and_fetch(*(array.transpose(1, 0, 2)[None] for array in both))
        return held

    runner._cache_with_pool_backed_attention = cache
    runner._materialize_pool_backed_attention = lambda held: held


def _difference(stock: Sequence[Outcome], patched: Sequence[Outcome]) -> str:
    for number, (one, other) in enumerate(zip(stock, patched, strict=True)):
        for what in ("tokens", "pool"):
            if getattr(one, what) != getattr(other, what):
                return f"traffic {number}: {what}"
    beyond = max(active - counted for each in patched for active, counted in each.held)
    return f"{beyond} bytes more than counted" if beyond > SPARE else ""
