"""What patches compare at boot, and faults that only a queue of the GPU shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import mlx.core as mx
import trials as plays
from job_tools import RELEASE, played

from sglang_perf_patches.sets.mlx.kv_arena import arena_self_check
from sglang_perf_patches.sets.mlx.kv_arena import body as kv_arena
from sglang_perf_patches.sets.mlx.kv_arena.arena import Arenas
from sglang_perf_patches.sets.mlx.kv_arena.step import Writer
from sglang_perf_patches.verify.mlx import cases, models


def broken_trial() -> dict[str, Any]:
    """A device that counts as unproven, where arenas give other values: what happens."""
    write = Writer.write

    def wrong_token(self: Any, layer: Any, keys: Any, values: Any) -> Any:
        return write(self, layer, keys, keys)

    schedules = [cases.SCRIPTED, cases.HITTING, cases.GROWING]
    results: dict[str, Any] = {}
    with (
        models.model("qwen3", "float32") as model,
        mock.patch.object(kv_arena, "is_proven", return_value=False),
    ):
        for what, selection, changed in (
            ("stock", "none", write),
            ("broken", "mlx.kv-arena", wrong_token),
            ("whole", "mlx.kv-arena", write),
        ):
            with mock.patch.object(Writer, "write", changed):
                results[what] = played(
                    selection, model, schedules, kv_arena.COUNTS, "mlx.kv-arena", radix=True
                )
    return results


def queued_faults() -> dict[str, Any]:
    """A device that counts as unproven, and is wrong where a step is queued behind another one.

    Stock, patched on a device without a fault, with each fault, and with a fault while the patch
    waits for every step that it compares.
    """
    short: list[cases.Step] = [
        *(("join", who, 9) for who in "ab"),
        ("chain", "ab", 22),
        ("join", "c", 12),
        ("chain", "cab", 22),
    ]
    longer: list[cases.Step] = [*(("join", who, 300) for who in "ab"), ("chain", "ab", 22)]
    check = arena_self_check.ArenaSelfCheck
    end_step = check.end_step

    def waits(self: Any) -> None:
        end_step(self)
        mx.synchronize()

    results: dict[str, Any] = {}
    with (
        models.model("qwen3", "float32") as model,
        mock.patch.object(kv_arena, "is_proven", return_value=False),
    ):
        device = _Device(model)
        for what, selection, fault in (
            ("stock", "none", ""),
            ("none", "mlx.kv-arena", ""),
            *((fault, "mlx.kv-arena", fault) for fault in _Device.FAULTS),
            ("waits", "mlx.kv-arena", "queued"),
        ):
            schedules = [short, longer] if what in {"stock", "none", "longer"} else [short]
            ends = waits if what == "waits" else end_step
            with device.faulty(fault), mock.patch.object(check, "end_step", ends):
                results[what] = played(selection, model, schedules, kv_arena.COUNTS, "mlx.kv-arena")
                results[what]["faults"] = device.faults
    return results


class _Device:
    """A device on which arenas go wrong in steps queued behind one that nobody has waited for."""

    FAULTS = ("queued", "enlarged", "moved", "unequal", "longer")
    """Each is of queued steps alone, and all but the first of some of them."""

    def __init__(self, made: Any) -> None:
        self._owner = made.model.model
        self._embed = self._owner.embed_tokens
        self.faults = 0
        # What was queued, with its number; then the numbers of the last decode steps, as they were
        # begun, and of what has been waited for.
        self._queued: dict[int, tuple[Any, int]] = {}
        self._number = self._waited = 0
        self._begun = [0, 0]

    @contextmanager
    def faulty(self, fault: str) -> Iterator[None]:
        self.faults = 0
        build, grow, write = Arenas.build, Arenas.grow, Writer.write
        device, happened = self, {"last": ""}

        def building(self: Any, caches: Any, *more: Any) -> Any:
            has_rows = any(type(cache) is self.row_class for cache in caches[0])
            happened["last"] = "moved" if has_rows else ""
            return build(self, caches, *more)

        def growing(self: Any, *words: Any) -> None:
            happened["last"] = "enlarged"
            grow(self, *words)

        def writing(self: Any, layer: Any, keys: Any, values: Any) -> Any:
            concerned = {
                "": False,
                "queued": True,
                "unequal": not self.is_equal,
                "longer": self.longest > 256,
            }.get(fault, happened["last"] == fault)
            if concerned and device.is_busy():
                device.faults += 1
                values = keys
            return write(self, layer, keys, values)

        with (
            self._watched(),
            mock.patch.object(Arenas, "build", building),
            mock.patch.object(Arenas, "grow", growing),
            mock.patch.object(Writer, "write", writing),
        ):
            yield

    def is_busy(self) -> bool:
        """Whether the step before this one is queued, and nobody has waited for it."""
        before, now = self._begun
        return any(before < number <= now for _, number in self._queued.values()) and not any(
            before < number <= self._waited for _, number in self._queued.values()
        )

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Note what is queued and what is waited for, by stock's code and by that of patches."""
        queue = mx.async_eval

        def queued(*arrays: Any) -> None:
            self._number += 1
            for array in _flat(arrays):
                self._queued[id(array)] = array, self._number
            queue(*arrays)

        def of_all(wait: Any) -> Any:
            def waits(*arrays: Any) -> Any:
                self._waited = self._number
                return wait(*arrays)

            return waits

        def of_array(wait: Any) -> Any:
            def waits(array: Any) -> Any:
                # Whatever was not queued is computed now, behind all that was.
                _, number = self._queued.get(id(array), (None, self._number))
                self._waited = max(self._waited, number)
                return wait(array)

            return waits

        def embed(tokens: Any) -> Any:
            if tokens.shape[0] > 1:
                self._begun = [self._begun[1], self._number]
            return self._embed(tokens)

        self._queued.clear()
        self._owner["embed_tokens"] = embed
        try:
            with (
                mock.patch.object(mx, "async_eval", queued),
                mock.patch.object(mx, "eval", of_all(mx.eval)),
                mock.patch.object(mx, "synchronize", of_all(mx.synchronize)),
                mock.patch.object(mx.array, "tolist", of_array(mx.array.tolist)),
                mock.patch.object(mx.array, "item", of_array(mx.array.item)),
            ):
                yield
        finally:
            self._owner["embed_tokens"] = self._embed


def _flat(arrays: Any) -> Iterator[Any]:
    for each in arrays:
        if isinstance(each, (list, tuple)):
            yield from _flat(each)
        else:
            yield each


def trials() -> dict[str, Any]:

    results = {"in groups": plays.in_groups(), "restless": plays.restless(), "late": plays.late()}
    if RELEASE == "0.5.23":
        results["prompts"] = plays.prompts()
        results["mistakes"] = plays.mistakes()
    return results
