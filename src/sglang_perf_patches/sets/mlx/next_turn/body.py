"""``mlx.next-turn``: keeps a finished request's caches for the next turn of its conversation.

Only for models with a sliding window, which have no pool: stock prefills all of a conversation at
each turn. Stock's own functions run. If a prompt begins with a finished request's prompt, its
prefill gets that request's caches and runs only the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

from ....model.patch import of
from ..references import RUNNER
from . import PATCH

MOST = 16  # finished requests whose caches are kept
MOST_BYTES = 2 << 30  # of all kept caches

COUNTS: Counter[str] = Counter()
"""Counts for this process: prefills ``continued`` from a finished request, and those of them that
were ``rewound`` to its prompt's end."""


@PATCH.setup()
def setup(patch):
    patch.state.core = patch.module("mlx.core")
    # Here and on no object of stock's: kept turns are no requests, and go with the patch.
    patch.state.turns = WeakKeyDictionary()


def _turns_of(patch, runner):
    turns = patch.state.turns.get(runner)
    if turns is None:
        turns = patch.state.turns[runner] = _Turns(patch.state.core)
    return turns


@PATCH.replaces(f"{RUNNER}.remove_request")
def remove_request(self, req_id, *, patch, stock):
    """Note the tokens of the request whose caches stock is about to release."""
    turns = _turns_of(patch, self)
    slots, end = turns.slots.pop(req_id, None), turns.ends.pop(req_id, None)
    if slots:
        turns.leaving = list(self._req_token_ids.get(req_id, ())), slots, end
    try:
        stock(self, req_id)
    finally:
        turns.leaving = None


@PATCH.replaces(f"{RUNNER}._release_cache")
def release_cache(self, cache, *, patch, stock):
    """Keep a finished request's caches; stock releases others and the oldest ones."""
    turns = _turns_of(patch, self)
    if turns.leaving is None or not turns.keep(*turns.leaving, cache):
        stock(self, cache)
    for released in turns.take_surplus():
        stock(self, released)


@PATCH.replaces(f"{RUNNER}._acquire_cache")
def acquire_cache(self, *, patch, stock):
    """Caches for a prefill: those of the previous turn, if there are any."""
    turns = _turns_of(patch, self)
    handed, turns.handed = turns.handed, None
    return stock(self) if handed is None else handed


@PATCH.replaces(f"{RUNNER}.prefill_start")
def prefill_start(self, req_id, new, full, prefix_slots, new_slots, *more, patch, stock):
    """Run only the tokens that are new since the previous turn."""
    turns, prefix, tokens = _turns_of(patch, self), len(prefix_slots), list(full)
    # Remove requests that have ended, as stock does at the next step of another request. Else a
    # conversation that has the server for itself would continue the turn before its last one.
    # Stock has finished every step before it starts a prompt, and removing twice is no error.
    for ended in [each for each in self._req_caches if each not in self._req_pool_idx]:
        self.remove_request(ended)
    _watch(self, turns)
    turns.slots[req_id] = [*prefix_slots, *new_slots]
    is_whole = len(new) + prefix == len(tokens)
    start = turns.hand_over(tokens, prefix_slots) if is_whole else 0
    if not start:
        return stock(self, req_id, new, full, prefix_slots, new_slots, *more)
    COUNTS["continued"] += 1
    patch.ran.seen = True
    # Why this trick: without a prefix, stock acquires caches that it assumes to be empty, and runs
    # the tokens from the caches' end on. No pool would want the slots.
    try:
        pending = stock(self, req_id, tokens[start:], tokens, [], [], *more)
    finally:
        turns.handed = None
    pending.synced_offset = prefix + len(new_slots)
    return pending


@PATCH.replaces(*of(RUNNER, "prefill_finalize", "extend_finalize"))
def finalize(self, pending, *, patch, stock):
    """Copy what a prompt, or a chunk of one, leaves in the windows; the last one stays."""
    end = _End.of(patch.state.core, pending.cache)
    if end is not None:
        _turns_of(patch, self).ends[pending.req_id] = end
    return stock(self, pending)


@dataclass(frozen=True)
class _End:
    """What the windows held when a request's prompt was computed.

    A chat's template may leave out of the next prompt what the model has thought. A window that has
    moved past the prompt's end can't be cut back to it.
    """

    length: int  # tokens of the prompt
    # By layer, K and V of the last tokens that a window covers, each (1, n_kv_heads, tokens,
    # head_dim); nothing for full attention.
    windows: list[list[Any]]

    @classmethod
    def of(cls, core: Any, caches: Sequence[Any]) -> _End | None:
        """That of caches to which a prompt is written; None without windows."""
        windows: list[list[Any]] = [[] for _ in caches]
        for cache, both in zip(caches, windows, strict=True):
            if hasattr(cache, "window"):
                held = slice(max(0, cache._local - cache.window), cache._local)
                # Copies: a part of the buffer would keep all of it, and have the next step copy it.
                both += [core.contiguous(each[:, :, held]) for each in (cache.keys, cache.values)]
        if not any(windows):
            return None
        core.async_eval(windows)
        return cls(caches[0].offset, windows)

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(array.nbytes for both in self.windows for array in both)


@dataclass(eq=False)
class _Turn:
    """A finished request."""

    tokens: list[int]  # those that its caches were computed from
    slots: list[int]  # the radix cache's, of its prompt or of the prompt's first chunk
    caches: list[Any]  # stock's, by layer
    end: _End  # of its prompt
    size: int  # of all that, in bytes

    def start(self, prompt: Sequence[int], prefix_slots: Sequence[int]) -> int:
        """The token at which a prompt continues; 0 unless it begins with all of this one's prompt.

        Less in common, such as a system prompt, is somebody else's conversation.
        """
        if list(prefix_slots[: len(self.slots)]) != self.slots:
            return 0
        common = min(_common(self.tokens, prompt), len(prompt) - 1)
        if common < self.end.length:
            return 0
        return common if _can_be_cut_back(self.caches, common) else self.end.length


class _Turns:
    """The turns that one runner keeps, the longest unused first."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._kept: list[_Turn] = []
        self.slots: dict[str, list[int]] = {}  # of each running request's prompt
        self.ends: dict[str, _End] = {}  # of each running request's prompt, with windows
        # Tokens, slots and end of the request that stock is removing; None at other times.
        self.leaving: tuple[list[int], list[int], _End | None] | None = None
        self.handed: list[Any] | None = None  # the caches for the current prefill

    def forget(self) -> None:
        """Drop all turns, also those of requests that are still to be removed."""
        self._kept.clear()
        self.slots.clear()
        self.ends.clear()

    def keep(self, tokens: list[int], slots: list[int], end: _End | None, caches) -> bool:
        """Keep caches of a model with windows; False if they can't be continued."""
        # Without windows nothing is kept; a recurrent state has no length either.
        if end is None or not end.length <= (length := caches[0].offset) <= len(tokens):
            return False
        for cache in caches:
            getattr(cache, "leave_arena", lambda: None)()
        arrays = [array for cache in caches for array in (cache.keys, cache.values)]
        self._core.eval(arrays)  # until then a copy out of a batch's buffers holds all of them
        size = sum(array.nbytes for array in arrays) + end.size
        self._kept.append(_Turn(tokens[:length], slots, caches, end, size))
        return True

    def take_surplus(self) -> Iterator[list[Any]]:
        """Remove what exceeds the limits, the longest unused first."""
        while len(self._kept) > MOST or sum(turn.size for turn in self._kept) > MOST_BYTES:
            yield self._kept.pop(0).caches

    def hand_over(self, prompt: Sequence[int], prefix_slots: Sequence[int]) -> int:
        """The end of a prompt's longest kept prefix, whose caches are cut to it; 0 without.

        The radix cache must still hold the turn's prompt in the same slots, and separates prompts
        by `extra_key` and `cache_salt`. So the time of a prompt tells nobody what another client
        has sent, or what was sent before a flush.
        """
        starts = [(turn.start(prompt, prefix_slots), turn) for turn in self._kept]
        start, best = max(starts, key=lambda each: each[0], default=(0, None))
        if best is None or not start:
            return 0
        self._kept.remove(best)
        is_rewound = not _can_be_cut_back(best.caches, start)
        if is_rewound:
            COUNTS["rewound"] += 1
        for cache, both in zip(best.caches, best.end.windows, strict=True):
            if both and is_rewound:
                cache.keys, cache.values = both
                cache._local = both[0].shape[2]
            elif both:
                cache._local -= cache.offset - start
            cache.offset = start
        self.handed = best.caches
        return start


def _watch(runner: Any, turns: _Turns) -> None:
    """Drop the turns when stock flushes its cache.

    A flush calls nothing of the MLX backend. It clears the scheduler's pool of requests, which the
    runner has too. So the pool, one object, gets a `clear` of its own, which goes with the turns.
    """
    pool = runner._req_to_token_pool
    if pool is None:
        return
    watched, kept = ref(pool), ref(turns)

    def clear() -> None:
        pool, turns = watched(), kept()
        assert pool is not None  # it is called on the pool
        if turns is None:  # the patch has been removed
            vars(pool).pop("clear", None)
        else:
            turns.forget()
        type(pool).clear(pool)

    vars(pool)["clear"] = clear


def _can_be_cut_back(caches: Sequence[Any], length: int) -> bool:
    """Whether those with a window, which hold some more tokens, hold all of it at `length`."""
    return all(
        cache._local - (cache.offset - length) >= min(cache.window, length)
        for cache in caches
        if hasattr(cache, "window")
    )


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common prefix of two sequences."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return next(at for at in range(most) if one[at] != other[at])
