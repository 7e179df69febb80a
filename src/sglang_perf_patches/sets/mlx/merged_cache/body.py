"""``mlx.merged-cache``: the merged cache of a batch lives across decode steps.

Stock's own step runs: it merges the requests' caches, decodes, and splits the merged cache again.
Instead of a split-off cache each request gets a `_Row` of the merged cache. The next step of the
same batch reuses the merged cache without a merge. If anything else uses a row, the row is copied
out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from . import EXTRACT, MERGE

if TYPE_CHECKING:
    from ....model.patching import Patching

COUNTS: Counter[str] = Counter()
"""Counts for this process: ``merges`` by stock, ``steps`` that needed none, and ``cuts``, which
copy a request's cache out of a merged one."""


def install(patching: Patching) -> None:
    """Keep merged caches of full attention; stock handles those with a window."""
    ran = patching.ran
    core: Any = patching.module("mlx.core")
    batch_cache = patching.module("mlx_lm.models.cache").BatchKVCache
    # A batch lives as long as a row of it that is not copied out, and as long as its step.
    batches: WeakSet[_Batch] = WeakSet()
    patching.drain(lambda: not batches, "no request's cache is part of a merged one")

    def make_merge(inner: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def merge_kv_caches(caches_list: list[Any]) -> list[Any]:
            """Merge one list of caches per request into one cache per layer."""
            batch = _batch_of(caches_list)
            if batch is not None:
                ran.seen = True
                COUNTS["steps"] += 1
                return batch.begin()
            COUNTS["merges"] += 1
            left = {
                id(rows.batch): rows.batch
                for rows in caches_list
                if isinstance(rows, _Row) and rows.batch is not None
            }
            merged = inner(caches_list)
            taken = {id(rows) for rows in caches_list}
            for old in left.values():
                old.dissolve(core, taken)
            if merged and all(_can_be_kept(cache, batch_cache) for cache in merged):
                kept = _Batch(merged, len(caches_list), inner_extract[0])
                batches.add(kept)
                return kept.begin()
            return merged

        return merge_kv_caches

    def make_extract(inner: Callable[..., list[Any]]) -> Callable[..., Any]:
        inner_extract[:] = [inner]

        def extract_kv_cache(batch_caches: list[Any], idx: int) -> Any:
            """One request's caches; where the batch is kept, a row that is not copied out yet."""
            if isinstance(batch_caches, _Merged):
                return batch_caches.batch.row(idx)
            return inner(batch_caches, idx)

        return extract_kv_cache

    inner_extract: list[Any] = []
    patching.override(EXTRACT, make_extract)
    patching.override(MERGE, make_merge)


class _Merged(list[Any]):
    """One cache per layer, and their batch. Lives for one step, or it would be a cycle."""

    def __init__(self, batch: _Batch, caches: Sequence[Any]) -> None:
        super().__init__(caches)
        self.batch = batch


class _Batch:
    """A merged cache that is kept.

    Attributes:
        size: number of requests.
    """

    def __init__(self, merged: list[Any], size: int, extract: Callable[..., list[Any]]) -> None:
        self.size = size
        self._merged = merged
        self._extract = extract
        # Weak, so that the caches are freed with the last request, not when cycles are collected.
        self._rows: list[Callable[[], _Row | None]] = [lambda: None] * size
        self._length = _tokens_in(merged[0])
        self._running = False

    def begin(self) -> list[Any]:
        """The caches for a step, without the tokens that a failed step left in some layers."""
        self._settle()
        self._running = True
        return _Merged(self, self._merged)

    def row(self, number: int) -> _Row:
        """A request's caches after a step."""
        self._running = False
        self._length = _tokens_in(self._merged[0])
        row = self._rows[number]()
        if row is None:
            row = _Row(self, number)
            self._rows[number] = ref(row)
        return row

    def cut(self, number: int) -> list[Any]:
        """A request's caches, as stock extracts them."""
        self._settle()
        COUNTS["cuts"] += 1
        return self._extract(self._merged, number)

    def dissolve(self, core: Any, taken: Container[int]) -> None:
        """Copy the remaining rows out at once: an unevaluated copy would keep the whole batch.

        Args:
            core: ``mlx.core``.
            taken: ids of rows that are merged again; the next step evaluates them.
        """
        for row in (each() for each in self._rows):
            if row is not None and id(row) not in taken:
                core.async_eval([cache.state[:2] for cache in row])

    def _settle(self) -> None:
        if self._running:
            self._running = False
            for cache in self._merged:
                if _tokens_in(cache) > self._length:
                    cache.trim(_tokens_in(cache) - self._length)


class _Row(Sequence[Any]):
    """One request's caches by layer; part of a merged cache until something else uses them.

    Attributes:
        batch: the batch that holds them; None once they are copied out.
        number: the request's index in the batch.
    """

    def __init__(self, batch: _Batch, number: int) -> None:
        self.batch: _Batch | None = batch
        self.number = number
        self._own: list[Any] = []

    def __getitem__(self, index: Any) -> Any:
        return self._cut_out()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cut_out())

    def __len__(self) -> int:
        return len(self._cut_out())

    def _cut_out(self) -> list[Any]:
        if self.batch is not None:
            self._own = self.batch.cut(self.number)
            self.batch = None
        return self._own


def _can_be_kept(cache: Any, batch_cache: type) -> bool:
    """Whether a merged cache is for full attention and of a known class."""
    return type(cache) is batch_cache and hasattr(cache, "_idx")


def _tokens_in(cache: Any) -> int:
    """The length of a merged cache, padding included, in tokens.

    mlx-lm has ``size()`` for this from 0.31.2 on; before, it is missing or returns 0.
    """
    length: int = cache._idx
    return length


def _batch_of(caches_list: Sequence[Any]) -> _Batch | None:
    """The batch whose rows these are, if all its rows are here, in order; else None."""
    first = caches_list[0] if caches_list else None
    batch = first.batch if isinstance(first, _Row) else None
    if batch is None or batch.size != len(caches_list):
        return None
    for number, rows in enumerate(caches_list):
        if not isinstance(rows, _Row) or rows.batch is not batch or rows.number != number:
            return None
    return batch
