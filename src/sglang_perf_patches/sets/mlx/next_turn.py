"""``mlx.next-turn``: a finished request's caches wait for the next turn of its conversation.

Stock's own functions run. A prefill whose prompt begins with what a finished request was computed
from is given that request's caches, and the rest of the prompt as if that were all.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...model.patching import Patching

RUNNER = "sglang.srt.hardware_backend.mlx.model_runner:MlxModelRunner"

MOST = 16
"""Finished requests whose caches are kept."""

MOST_BYTES = 2 << 30
"""What they may take together, in bytes."""

COUNTS: Counter[str] = Counter()
"""What happened in this process: ``kept`` finished requests, prefills that were ``continued`` from
one, and requests that were ``let go`` for others."""

_TURNS = "_sglang_perf_patches_turns"
_WORTH = 64
"""Tokens that more must be kept than the radix cache has, to run fewer than stock would."""


def install(patching: Patching) -> None:
    """Keep, hand out, and forget when stock clears its caches."""
    ran = patching.ran

    def make_remove(inner: Callable[..., None]) -> Callable[..., None]:
        def remove_request(self: Any, req_id: str) -> None:
            """Note whose caches stock is about to release."""
            turns = _turns_of(self)
            turns.leaving = list(self._req_token_ids.get(req_id, ()))
            try:
                inner(self, req_id)
            finally:
                turns.leaving = None

        return remove_request

    def make_release(inner: Callable[..., None]) -> Callable[..., None]:
        def release_cache(self: Any, cache: list[Any]) -> None:
            """Keep a finished request's caches; others, and the oldest ones, go stock's way."""
            turns = _turns_of(self)
            if turns.leaving is None or not turns.keep(turns.leaving, cache):
                inner(self, cache)
            for released in turns.take_surplus():
                inner(self, released)

        return release_cache

    def make_acquire(inner: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def acquire_cache(self: Any) -> list[Any]:
            """Caches for a prefill: those of the turn before, where there are any."""
            handed, _turns_of(self).handed = _turns_of(self).handed, None
            return inner(self) if handed is None else handed

        return acquire_cache

    def make_prefill(inner: Callable[..., Any]) -> Callable[..., Any]:
        def prefill_start(
            self: Any,
            req_id: str,
            new_token_ids: list[int],
            full_token_ids: list[int],
            prefix_slot_ids: list[int],
            new_slot_ids: list[int],
            *more: Any,
            **options: Any,
        ) -> Any:
            """Run only what is new since the turn before."""
            turns, prefix = _turns_of(self), len(prefix_slot_ids)
            tokens = list(full_token_ids)
            found = turns.find(tokens, prefix)
            if found is None or len(new_token_ids) + prefix != len(tokens):
                words = new_token_ids, full_token_ids, prefix_slot_ids, new_slot_ids
                return inner(self, req_id, *words, *more, **options)
            start, turns.handed = found
            COUNTS["continued"] += 1
            ran.seen = True
            # Why this trick: told of no prefix and of no slots, stock takes caches that it believes
            # empty, runs the tokens from where they end, and writes nothing into the pool.
            try:
                pending = inner(self, req_id, tokens[start:], tokens, [], [], *more, **options)
            finally:
                turns.handed = None
            if new_slot_ids and not self.disable_radix_cache:
                self._sync_new_kv_to_pool(pending.cache, prefix, new_slot_ids)
                pending.synced_offset = prefix + len(new_slot_ids)
            return pending

        return prefill_start

    def make_clear(inner: Callable[..., None]) -> Callable[..., None]:
        def clear(self: Any) -> None:
            """Forget all turns with the caches that stock clears."""
            inner(self)
            vars(self).pop(_TURNS, None)

        return clear

    patching.override(f"{RUNNER}.remove_request", make_remove)
    patching.override(f"{RUNNER}._release_cache", make_release)
    patching.override(f"{RUNNER}._acquire_cache", make_acquire)
    patching.override(f"{RUNNER}.prefill_start", make_prefill)
    patching.override(f"{RUNNER}.clear", make_clear)


@dataclass(eq=False)
class _Turn:
    """A finished request.

    Attributes:
        tokens: what its caches were computed from.
        caches: stock's, by layer.
        size: what they take, in bytes.
    """

    tokens: list[int]
    caches: list[Any]
    size: int


class _Turns:
    """What one runner keeps, the longest unused first.

    Attributes:
        leaving: the tokens of the request that stock is removing; None while it is not.
        handed: the caches that the prefill is to be given.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[int, _Turn] = OrderedDict()
        self.leaving: list[int] | None = None
        self.handed: list[Any] | None = None

    def keep(self, tokens: Sequence[int], caches: list[Any]) -> bool:
        """Keep caches that hold tokens from the first on; False where they can't be continued."""
        lengths = {cache.offset for cache in caches if hasattr(cache, "offset")}
        # A layer without an offset has a recurrent state, which can't be cut back to a prefix.
        if len(lengths) != 1 or not all(hasattr(cache, "offset") for cache in caches):
            return False
        (length,) = lengths
        if not 0 < length <= len(tokens):
            return False
        for cache in caches:
            leave = getattr(cache, "leave_arena", None)
            if leave is not None:
                leave()
        size = sum(cache.keys.nbytes + cache.values.nbytes for cache in caches)
        turn = _Turn(list(tokens[:length]), caches, size)
        self._kept[id(turn)] = turn
        COUNTS["kept"] += 1
        return True

    def take_surplus(self) -> list[list[Any]]:
        """Let go what is too much, the longest unused first."""
        surplus = []
        while self._kept and (
            len(self._kept) > MOST or sum(turn.size for turn in self._kept.values()) > MOST_BYTES
        ):
            surplus.append(self._kept.popitem(last=False)[1].caches)
            COUNTS["let go"] += 1
        return surplus

    def find(self, prompt: Sequence[int], prefix: int) -> tuple[int, list[Any]] | None:
        """Where the longest kept beginning of a prompt ends, and the caches, cut back to there.

        Args:
            prompt: all of it.
            prefix: tokens that the radix cache has of it.

        Returns:
            None where stock's own way runs as few tokens.
        """
        best, most = None, 0
        for turn in self._kept.values():
            common = min(_common(turn.tokens, prompt), len(prompt) - 1)
            start = _start(turn.caches, common, prefix)
            if start > most:
                best, most = turn, start
        if best is None:
            return None
        del self._kept[id(best)]
        for cache in best.caches:
            _cut_back(cache, most)
        return most, best.caches


def _start(caches: Sequence[Any], common: int, prefix: int) -> int:
    """From which token on a prompt is run that has so many in common with caches; 0 for stock's.

    Where stock would read the pool, from the same token on, so that the result is the same; unless
    the radix cache has forgotten much of what is kept.
    """
    if any(hasattr(cache, "window") for cache in caches):
        return common if all(_can_be_cut_back(cache, common) for cache in caches) else 0
    if common < prefix:
        return 0
    return prefix if prefix and common - prefix < _WORTH else common


def _can_be_cut_back(cache: Any, length: int) -> bool:
    """Whether a cache can be as it was after so many tokens.

    One with a sliding window holds the window and some tokens more.
    """
    if not hasattr(cache, "window"):
        return True
    held: int = cache._local - (cache.offset - length)
    wanted: int = min(cache.window, length)
    return held >= wanted


def _cut_back(cache: Any, length: int) -> None:
    if hasattr(cache, "window"):
        cache._local -= cache.offset - length
    cache.offset = length


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of what two sequences begin with alike."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return next(at for at in range(most) if one[at] != other[at])


def _turns_of(runner: Any) -> _Turns:
    turns: _Turns = vars(runner).setdefault(_TURNS, _Turns())
    return turns
