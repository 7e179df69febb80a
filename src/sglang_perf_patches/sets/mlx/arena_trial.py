"""On a device where arenas are not proven, computes the first steps both ways.

MLX updates a buffer in place if nothing else references it. How that works with queued steps
depends on the backend: ml-explore/mlx#3866 reports wrong values on an Apple M4. So on such a
device stock serves the first steps of a process from the requests' own caches, and an arena of
copies computes the same steps. Each layer's two results are compared bit by bit. There are two
kinds of steps: with equal and with unequal lengths. An arena serves a kind only after `STEPS`
equal steps of it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from .arena import Arena, Rows
from .arena_choice import COUNTS, Caches, Choice
from .device import has_cuda

logger = logging.getLogger(__name__)

STEPS = 8
"""Steps of a kind that are compared before an arena serves it."""


def is_proven(core: Any) -> bool:
    """Whether equal logits are proven on MLX's device: yes on CPUs and CUDA, not on Metal."""
    on_cpu: bool = core.default_device() == core.Device(core.cpu)
    return on_cpu or has_cuda(core)


class Trial:
    """Computes steps in an arena of copies and compares them with stock's."""

    def __init__(self, rows: Rows, choice: Choice, gate: Callable[[str], None]) -> None:
        """`gate` switches the patch off, with a reason."""
        self._rows, self._choice, self._gate = rows, choice, gate
        self._is_over = False
        self._equal: Counter[bool] = Counter()
        self._arena: Arena | None = None
        self._copied: tuple[list[int], list[int]] = [], []
        self._pairs: list[tuple[Any, Any, Any]] = []

    def is_needed(self, lengths: list[int]) -> bool:
        """Whether stock must serve such a step, for comparison or because the trial failed."""
        self._compare()
        return self._is_over or self._equal[_are_equal(lengths)] < STEPS

    def arena_for(self, caches: Caches, lengths: list[int]) -> Arena | None:
        """The arena of copies for a step that stock serves; None to run stock alone.

        As in `Choice`, a batch gets an arena at its second step.
        """
        COUNTS["stock steps"] += 1
        if self._is_over:
            return None
        batch = [id(cache) for cache in caches[0]]
        if self._arena is None or self._copied != (batch, lengths):
            self._drop()
            self._choice.leave(caches)
            is_expected = self._choice.is_expected(caches, lengths)
            fits = max(lengths) + 1 <= self._choice.most(caches, lengths)
            if not is_expected or not fits:
                return None
            copies = [[self._copy(cache) for cache in of_layer] for of_layer in caches]
            self._arena = self._choice.build(copies, lengths)
            for layer in filter(None, self._arena.layers):
                self._rows.forget(layer)
        if not any(self._arena.layers) or max(lengths) + 1 > self._arena.capacity:
            self._drop()  # the next one is built from stock's caches
            return None
        self._copied = batch, [length + 1 for length in lengths]
        COUNTS["tried steps"] += 1
        return self._arena

    def note(self, lengths: list[int], stock: Any, found: Any) -> None:
        """Keep a layer's two results, (batch, 1, hidden), until the next step."""
        self._pairs.append((_are_equal(lengths), stock, found))

    def end_step(self, lengths: list[int]) -> None:
        """Count a step after all its layers were noted."""
        self._equal[_are_equal(lengths)] += 1

    def _compare(self) -> None:
        """Wait for the noted results and compare them; a difference switches the patch off."""
        pairs, self._pairs = self._pairs, []
        for number, (is_equal_lengths, stock, found) in enumerate(pairs):
            if not same_bits(self._rows.core, stock, found):
                self._is_over = True
                self._drop()
                kind = "equal" if is_equal_lengths else "unequal"
                reason = (
                    f"on {self._rows.core.default_device()} attention layer {number} of a step "
                    f"with {kind} lengths gave other bits than stock's"
                )
                logger.warning("mlx.kv-arena runs stock's code for everything: %s", reason)
                self._gate(reason)
                return

    def _drop(self) -> None:
        """Free the arena's buffers now: its rows and layers reference each other."""
        if self._arena is not None:
            for layer in self._arena.layers:
                if layer is not None:
                    layer.keys = layer.values = None
        self._arena = None

    def _copy(self, cache: Any) -> Any:
        """A copy of stock's cache with the same KV, for an arena; any other cache unchanged."""
        if type(cache) is not self._rows.cache_class:
            return cache
        copied = self._rows.cache_class(max_seq_len=cache.max_seq_len)
        copied.keys, copied.values, copied.offset = cache.keys, cache.values, cache.offset
        return copied


def _are_equal(lengths: list[int]) -> bool:
    return min(lengths) == max(lengths)


def same_bits(core: Any, one: Any, other: Any) -> bool:
    """Whether two arrays are equal in shape, dtype and every bit; waits for both."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    words = {1: core.uint8, 2: core.uint16, 4: core.uint32}[one.dtype.size]
    return bool(core.array_equal(one.view(words), other.view(words)).item())
