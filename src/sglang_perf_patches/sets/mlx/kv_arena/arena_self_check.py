"""On a device where arenas are untested, computes steps both ways before arenas take over.

MLX updates a buffer in place if nothing else references it. How that works with queued steps
depends on the backend: ml-explore/mlx#3866 reports wrong values on an Apple M4. So on such a device
stock handles steps from the requests' own caches, an arena of copies computes the same steps, and
each layer's two results are compared bit by bit. The comparison of a step is queued with it and
read two steps later. So where stock queues steps, the arena's next step is built and queued while
one is computed, as it is once arenas take over.

Each `Kind` of step is tried in `PHASES`, and passes after `STEPS` equal steps of one batch in each.
A kind that has not passed after `TRIES` steps, as the batch changed too often, is left to stock
until a batch lasts for `LASTING` steps. A kind that has passed goes through its last phase again at
each `EVERY`-th step, for faults that come too seldom for the first steps.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....model.patching import Patching
from ..device import equal_bits
from ..self_check import SelfCheck
from .arena import COUNTS, Arena, Arenas, Caches, Groups, capacity_for, parts_of

PHASES = ("built", "enlarged", "moved")
"""An arena of stock's buffers, an enlarged one, and one that was made of other arenas' rows."""

STEPS = 4  # in a row, that are compared in each phase
TRIES = 2 * len(PHASES) * STEPS  # steps of a kind at most: enough if a batch lasts for five steps
LASTING = TRIES  # steps of one batch that stock serves before a kind without tries gets new ones
EVERY = 1024  # an arena serves so many steps of a kind, less one, before some are compared again
_BEHIND = 2
_SMALLEST = 8  # bits


@dataclass(frozen=True)
class Kind:
    """What decides how an arena's step is computed."""

    # Of each group, in any order: whether its requests have the same length, and the bits of the
    # longest one's length after the step. Attention's kernels change at powers of two.
    sizes: tuple[tuple[bool, int], ...]
    is_chained: bool  # the step is built before the one before it has been read

    @classmethod
    def of(cls, lengths: Sequence[int], groups: Groups, is_chained: bool) -> Kind:
        """The kind of a step, by the tokens of each request before it."""
        sizes = []
        for group in groups:
            own = [lengths[row] for row in group]
            sizes.append((min(own) == max(own), max(_SMALLEST, (max(own) + 1).bit_length())))
        return cls(tuple(sorted(sizes)), is_chained)

    def __str__(self) -> str:
        parts = "a step in groups" if len(self.sizes) > 1 else "a step"
        lengths = "equal" if all(is_equal for is_equal, _ in self.sizes) else "unequal"
        longest = (1 << max(bits for _, bits in self.sizes)) - 1
        after = " built before the last one was read" if self.is_chained else ""
        return f"{parts} with {lengths} lengths up to {longest}{after}"


@dataclass
class Copies:
    """Copies of a batch's caches, which go through the phases."""

    caches: list[list[Any]]  # the copies, by layer, then by request
    kind: Kind  # of the last step
    groups: Groups = ()  # the rows of each arena
    arenas: list[Arena] = field(default_factory=list)  # they hold the copies
    taken: int = 0  # steps in a row of this kind and phase


class ArenaSelfCheck:
    """Computes steps with copies, from a batch's second on, and compares them with stock's."""

    def __init__(self, arenas: Arenas, is_expected, patching: Patching) -> None:
        """`is_expected` is `Choice`'s."""
        self._arenas, self._is_expected = arenas, is_expected
        until = f"a batch lasts for more than {LASTING} steps"
        self._check = SelfCheck(
            "mlx.kv-arena", patching, needed=len(PHASES), tries=TRIES, until=until
        )
        self._number = self._untried = 0
        self._served: Counter[Kind] = Counter()
        self._copies: Copies | None = None  # of the batch of the step before
        self._noted: Any = None  # what was noted of a step that has not ended
        self._queued: deque[tuple[int, Kind, Any]] = deque()
        self._state = patching.state
        # Switches off the patch that asks for groups, if there is one.
        self.gate_of_groups: Callable[[str], None] = lambda _: None

    def begin(self, caches: Caches, lengths: list[int], groups: Groups) -> list[Arena] | None:
        """None if arenas may serve a step; else those of copies, empty if the step isn't tried."""
        self._number += 1
        if self._noted is not None:  # the step before has failed
            self._noted = None
            self._drop()
        self._read()
        kind = Kind.of(lengths, groups, self._state.is_chained)
        if self._may_serve(kind):
            self._drop()
            return None
        COUNTS["stock steps"] += 1
        is_expected = self._is_expected(caches, lengths)
        if not is_expected or self._copies is None:
            self._drop()
            self._arenas.leave(caches)
        self._untried = self._untried + 1 if is_expected else 0
        if self._untried > LASTING:
            self._check.tried[kind] = 0
        fits = len(groups) > 1 or max(lengths) + 1 <= self._arenas.most(caches, lengths)
        copies = None
        # A kind may have passed whose last comparisons have not been read.
        if is_expected and fits and self._check.may_try(kind):
            copies = self._prepared(caches, lengths, groups, kind)
        if copies is None or not any(self._arenas.among(copies.caches)):
            self._drop()
            return []
        copies.kind = kind
        COUNTS["tried steps"] += 1
        self._untried, self._noted = 0, []
        return copies.arenas

    def note(self, stock: Any, copied: Any) -> None:
        """Keep whether a layer's two results, (batch, 1, hidden), are equal."""
        self._noted.append(equal_bits(self._arenas.core, stock, copied))

    def end_step(self) -> None:
        """Queue a step's comparisons after all its layers were noted."""
        copies, core = self._copies, self._arenas.core
        assert copies is not None
        flags, self._noted = core.stack(self._noted), None
        core.async_eval(flags)
        self._queued.append((self._number, copies.kind, flags))
        copies.taken += 1
        if copies.taken == STEPS:
            copies.taken = 0
            self._check.credit(copies.kind)

    def _may_serve(self, kind: Kind) -> bool:
        # Steps that are queued behind others show more than others.
        kinds = {kind, Kind(kind.sizes, is_chained=True)} - {of for _, of, _ in self._queued}
        passed = [each for each in kinds if self._check.has_passed(each)]
        if not passed:
            return False
        self._served[kind] += 1
        if self._served[kind] % EVERY:
            return True
        for each in passed:
            self._check.doubt(each)
        return False

    def _prepared(self, caches: Caches, lengths: list[int], groups: Groups, kind: Kind) -> Copies:
        """The copies, ready for the next step of this kind."""
        ready = self._copies
        phase = PHASES[self._check.credits[kind]]
        if ready is not None and (ready.kind, ready.groups) != (kind, groups):
            ready.taken = 0
        if ready is None or (phase == PHASES[0] and not ready.taken):
            self._drop()
            copies = [[self._copy(cache) for cache in of_layer] for of_layer in caches]
            ready = self._copies = Copies(copies, kind)
        if ready.groups != groups:
            ready.groups = groups
            self._build(ready, lengths)
        begins = not ready.taken
        if begins and phase == "moved":
            # Rows in another order; then all but one, and a request's buffer.
            self._arenas.build([each[::-1] for each in ready.caches], lengths[::-1])
            self._arenas.leave([of_layer[:1] for of_layer in ready.caches])
            self._build(ready, lengths)
        for arena in ready.arenas:
            if (begins and phase == "enlarged") or max(arena.lengths) + 1 > arena.capacity:
                needed = max(arena.capacity, *arena.lengths) + 1
                self._arenas.grow(arena, capacity_for(needed, needed))
        for _, layer in self._arenas.among(ready.caches):
            self._arenas.layers.discard(layer)  # no request's KV is in it
        return ready

    def _build(self, copies: Copies, lengths: list[int]) -> None:
        parts = parts_of(copies.caches, lengths, copies.groups)
        copies.arenas = [self._arenas.build(*part) for part in parts]

    def _read(self) -> None:
        """Read the comparisons that are old enough; a difference switches the patch off."""
        while self._queued and self._queued[0][0] <= self._number - _BEHIND:
            _, kind, flags = self._queued.popleft()
            equal: list[bool] = flags.tolist()
            if not all(equal):
                self._queued.clear()
                self._drop()
                device, at = self._arenas.core.default_device(), equal.index(False)
                reason = f"on {device} attention layer {at} of {kind} gave other bits than stock's"
                self._check.fail(reason)
                self.gate_of_groups(reason)

    def _drop(self) -> None:
        """Free the copies' buffers now: rows and layers reference each other."""
        for _, layer in self._arenas.among(self._copies.caches if self._copies else ()):
            layer.keys = layer.values = None
        self._copies = None

    def _copy(self, cache: Any) -> Any:
        """A copy of stock's cache with the same KV, for an arena; any other cache unchanged."""
        if type(cache) is not self._arenas.cache_class:
            return cache
        copied = self._arenas.cache_class(max_seq_len=cache.max_seq_len)
        copied.keys, copied.values, copied.offset = cache.keys, cache.values, cache.offset
        return copied
