"""On a device where arenas are not proven, computes steps both ways before arenas serve them.

MLX updates a buffer in place if nothing else references it. How that works with queued steps
depends on the backend: ml-explore/mlx#3866 reports wrong values on an Apple M4. So on such a device
stock serves steps from the requests' own caches, and an arena of copies computes the same steps.
Each layer's two results are compared bit by bit.

The comparison of a step is queued with it and read two steps later. So where stock queues steps,
the arena's next step is built and queued while one is computed, as it is when arenas serve.

Steps are of a kind, by what selects kernels and by how they follow each other, and each kind is
tried in `PHASES`: an arena of stock's buffers, an enlarged one, one that was made of other arenas'
rows, and rows that were set apart. An arena serves a kind only after `STEPS` equal steps of one
batch in each phase.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..device import equal_bits, has_cuda
from .arena import Arena, Rows, capacity_for
from .choice import COUNTS, Caches, Choice
from .moves import Moves

logger = logging.getLogger(__name__)

PHASES = ("built", "enlarged", "moved", "set apart")
"""What happens to the copies before the steps of a phase."""

STEPS = 4
"""Steps in a row that are compared in each phase."""

_BEHIND = 2
_SMALLEST = 8


@dataclass(frozen=True)
class Kind:
    """What decides how an arena's step is computed.

    Attributes:
        is_equal: all requests have the same length.
        bits: of the longest request's length after the step, at least 8; attention's kernels change
            at powers of two.
        is_chained: the step is built before the one before it has been read.
    """

    is_equal: bool
    bits: int
    is_chained: bool


def is_proven(core: Any) -> bool:
    """Whether equal logits are proven on MLX's device: yes on CPUs and CUDA, not on Metal."""
    on_cpu: bool = core.default_device() == core.Device(core.cpu)
    return on_cpu or has_cuda(core)


@dataclass
class _Copies:
    """Copies of a batch's caches, which go through the phases.

    Attributes:
        batch: ids of the caches that they are copies of.
        lengths: tokens of each request.
        caches: the copies, by layer, then by request; rows of `arena`, but in a step of rows that
            were set apart.
        arena: the arena that holds them.
        kind: the kind of the last step.
        taken: steps in a row of this kind and phase.
    """

    batch: list[int]
    lengths: list[int]
    caches: list[list[Any]]
    arena: Arena | None
    kind: Kind | None = None
    taken: int = 0


@dataclass(frozen=True)
class Pass:
    """A step that is computed both ways.

    Attributes:
        arena: the arena of copies that computes it; None if stock's code computes it.
        caches: the copies, by layer, then by request.
    """

    arena: Arena | None
    caches: list[list[Any]]


class Trial:
    """Computes steps with copies and compares them with stock's.

    Attributes:
        is_chained: the step that is being built is built before the one before it has been read.
    """

    def __init__(
        self, rows: Rows, choice: Choice, moves: Moves, gate: Callable[[str], None]
    ) -> None:
        """`gate` switches the patch off, with a reason."""
        self._rows, self._choice, self._moves, self._gate = rows, choice, moves, gate
        self._is_over = False
        self._number = 0
        self._is_open = False
        self._passed: Counter[Kind] = Counter()
        self._copies: _Copies | None = None
        self._noted: list[Any] = []
        self._queued: deque[tuple[int, Kind, Any]] = deque()
        self.is_chained = False

    def is_needed(self, lengths: list[int]) -> bool:
        """Whether stock must serve such a step, for comparison or because the trial failed."""
        self._number += 1
        if self._is_open:  # the step before has failed
            self._is_open = False
            self._noted.clear()
            self._drop()
        self._read()
        return self._is_over or not self._has_passed(self._kind_of(lengths))

    def begin(self, caches: Caches, lengths: list[int]) -> Pass | None:
        """How copies compute a step that stock serves; None to run stock alone.

        As in `Choice`, a batch gets an arena at its second step.
        """
        COUNTS["stock steps"] += 1
        if self._is_over:
            return None
        batch, kind = [id(cache) for cache in caches[0]], self._kind_of(lengths)
        if self._copies is None or (self._copies.batch, self._copies.lengths) != (batch, lengths):
            self._drop()
            self._choice.leave(caches)
        is_expected = self._choice.is_expected(caches, lengths)
        is_done = self._passed[kind] == len(PHASES)  # its last comparisons have not been read
        fits = max(lengths) + 1 <= self._choice.most(caches, lengths)
        if is_done or not is_expected or not fits:
            self._drop()
            return None
        copies = self._prepared(caches, lengths, kind)
        if not any(any(map(self._rows.layer_if_row, each)) for each in copies.caches):
            self._drop()
            return None
        copies.kind, copies.lengths = kind, [length + 1 for length in lengths]
        COUNTS["tried steps"] += 1
        self._is_open = True
        return Pass(copies.arena, copies.caches)

    def note(self, stock: Any, copied: Any) -> None:
        """Keep whether a layer's two results, (batch, 1, hidden), are equal."""
        self._noted.append(equal_bits(self._rows.core, stock, copied))

    def end_step(self) -> None:
        """Queue a step's comparisons after all its layers were noted."""
        copies, core = self._copies, self._rows.core
        assert copies is not None
        assert copies.kind is not None
        flags, self._noted, self._is_open = core.stack(self._noted), [], False
        core.async_eval(flags)
        self._queued.append((self._number, copies.kind, flags))
        copies.taken += 1
        if copies.taken == STEPS:
            copies.taken = 0
            self._passed[copies.kind] += 1

    def _kind_of(self, lengths: list[int]) -> Kind:
        longest = max(lengths)
        bits = max(_SMALLEST, (longest + 1).bit_length())
        return Kind(min(lengths) == longest, bits, self.is_chained)

    def _has_passed(self, kind: Kind) -> bool:
        """Whether an arena may serve; steps that are queued behind others show more than others."""
        kinds = {kind, Kind(kind.is_equal, kind.bits, is_chained=True)}
        return any(
            self._passed[each] == len(PHASES) and all(of != each for _, of, _ in self._queued)
            for each in kinds
        )

    def _prepared(self, caches: Caches, lengths: list[int], kind: Kind) -> _Copies:
        """The copies, ready for the next step of this kind."""
        ready = self._copies
        phase = PHASES[self._passed[kind]]
        if ready is not None and ready.kind != kind:
            ready.taken = 0
        if ready is None or (phase == PHASES[0] and not ready.taken):
            self._drop()
            copies = [[self._copy(cache) for cache in of_layer] for of_layer in caches]
            batch = [id(cache) for cache in caches[0]]
            ready = self._copies = _Copies(batch, lengths, copies, None)
        if ready.arena is None:  # of stock's buffers, or of rows that have been set apart
            ready.arena = self._choice.build(ready.caches, lengths)
        if not ready.taken:
            self._change(ready, lengths, phase)
        elif max(lengths) + 1 > ready.arena.capacity:
            self._enlarge(ready.arena, max(lengths) + 1)
        for of_layer in ready.caches:
            for layer in filter(None, map(self._rows.layer_if_row, of_layer)):
                self._rows.forget(layer)
        return ready

    def _change(self, copies: _Copies, lengths: list[int], phase: str) -> None:
        """What the phase is about, at its start."""
        assert copies.arena is not None
        if phase == "enlarged":
            self._enlarge(copies.arena, max(copies.arena.capacity, max(lengths)) + 1)
        elif phase == "moved":  # rows in another order; then all but one, and a request's buffer
            self._choice.build([each[::-1] for each in copies.caches], lengths[::-1])
            for first, *_ in copies.caches:
                if self._rows.layer_if_row(first) is not None:
                    self._rows.take_back(first)
            copies.arena = self._choice.build(copies.caches, lengths)
        if max(lengths) + 1 > copies.arena.capacity:
            self._enlarge(copies.arena, max(lengths) + 1)
        if phase == "set apart":
            self._moves.set_apart(copies.caches)
            copies.arena = None

    def _enlarge(self, arena: Arena, needed: int) -> None:
        self._moves.grow(arena, capacity_for(needed, needed))

    def _read(self) -> None:
        """Read the comparisons that are old enough; a difference switches the patch off."""
        while self._queued and self._queued[0][0] <= self._number - _BEHIND:
            _, kind, flags = self._queued.popleft()
            equal: list[bool] = flags.tolist()
            if not all(equal):
                self._fail(kind, equal.index(False))
                return

    def _fail(self, kind: Kind, layer: int) -> None:
        self._is_over = True
        self._queued.clear()
        self._drop()
        lengths = "equal" if kind.is_equal else "unequal"
        after = " built before the last one was read" if kind.is_chained else ""
        reason = (
            f"on {self._rows.core.default_device()} attention layer {layer} of a step with "
            f"{lengths} lengths{after} gave other bits than stock's"
        )
        logger.warning("mlx.kv-arena runs stock's code for everything: %s", reason)
        self._gate(reason)

    def _drop(self) -> None:
        """Free the copies' buffers now: rows and layers reference each other."""
        if self._copies is not None:
            for of_layer in self._copies.caches:
                for layer in filter(None, map(self._rows.layer_if_row, of_layer)):
                    layer.keys = layer.values = None
        self._copies = None

    def _copy(self, cache: Any) -> Any:
        """A copy of stock's cache with the same KV, for an arena; any other cache unchanged."""
        if type(cache) is not self._rows.cache_class:
            return cache
        copied = self._rows.cache_class(max_seq_len=cache.max_seq_len)
        copied.keys, copied.values, copied.offset = cache.keys, cache.values, cache.offset
        return copied
