"""On a device where nobody has proven arenas, the first steps are computed both ways.

MLX updates a buffer in place where nothing else holds it, and how that goes with steps that are
queued is each backend's own: ml-explore/mlx#3866 reports wrong values on an Apple M4. So there the
first steps of a process are stock's, on the requests' own caches, and beside them the same steps
are taken in an arena of copies. Each layer's result is compared, bit by bit. Only after
`STEPS` steps of a kind (with equal lengths, with unequal ones) does an arena serve that kind.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from .arena import Arena, Rows
from .arena_choice import COUNTS, Caches, Choice

logger = logging.getLogger(__name__)

STEPS = 8
"""Steps of a kind that are compared before an arena serves it."""


def is_proven(core: Any) -> bool:
    """Whether the logits were proven equal on MLX's device: on CPUs and on CUDA, not on Metal."""
    on_cpu: bool = core.default_device() == core.Device(core.cpu)
    return on_cpu or (hasattr(core, "cuda") and bool(core.cuda.is_available()))


class Trial:
    """Steps in an arena of copies, beside stock's."""

    def __init__(self, rows: Rows, choice: Choice, gate: Callable[[str], None]) -> None:
        """`gate` leaves everything to stock, for a reason."""
        self._rows, self._choice, self._gate = rows, choice, gate
        self._is_over = False
        self._equal: Counter[bool] = Counter()
        self._arena: Arena | None = None
        self._copied: tuple[list[int], list[int]] = [], []
        self._pairs: list[tuple[Any, Any, Any]] = []

    def is_needed(self, lengths: list[int]) -> bool:
        """Whether a step with these lengths is still to be compared, or to be left to stock."""
        self._compare()
        return self._is_over or self._equal[_are_equal(lengths)] < STEPS

    def arena_for(self, caches: Caches, lengths: list[int]) -> Arena | None:
        """The arena of copies for a step that is stock's; None for stock alone.

        As with an arena that serves, a batch is taken when it comes a second time.
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
        if not any(self._arena.layers) or max(lengths) + 1 > self._arena.capacity:
            self._drop()  # another one is built from what stock has
            return None
        self._copied = batch, [length + 1 for length in lengths]
        COUNTS["tried steps"] += 1
        return self._arena

    def note(self, lengths: list[int], stock: Any, found: Any) -> None:
        """Keep a layer's two results, (batch, 1, hidden), until the next step."""
        self._pairs.append((_are_equal(lengths), stock, found))

    def end_step(self, lengths: list[int]) -> None:
        """Count a step whose layers were all noted."""
        self._equal[_are_equal(lengths)] += 1

    def _compare(self) -> None:
        """Compare what was noted, waiting for it; a difference ends the trial, and the patch."""
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
        """Let the arena's buffers go now: its rows and layers refer to each other."""
        if self._arena is not None:
            for layer in self._arena.layers:
                if layer is not None:
                    layer.keys = layer.values = None
        self._arena = None

    def _copy(self, cache: Any) -> Any:
        """A cache with the same KV, which an arena may take; another kind of cache as it is."""
        if type(cache) is not self._rows.cache_class:
            return cache
        copied = self._rows.cache_class(max_seq_len=cache.max_seq_len)
        copied.keys, copied.values, copied.offset = cache.keys, cache.values, cache.offset
        return copied


def _are_equal(lengths: list[int]) -> bool:
    return min(lengths) == max(lengths)


def same_bits(core: Any, one: Any, other: Any) -> bool:
    """Whether two arrays of one shape and dtype are equal bit by bit; waits for them."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    words = {1: core.uint8, 2: core.uint16, 4: core.uint32}[one.dtype.size]
    return bool(core.array_equal(one.view(words), other.view(words)).item())
