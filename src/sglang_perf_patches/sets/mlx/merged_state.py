"""``mlx.merged-state``: a hybrid model's recurrent state stays merged from step to step.

Stock's own step runs: it merges the requests' states of a layer, decodes, and splits the merged
state again. Instead of a split-off state it gets a `_Place` in the merged state, and the request's
cache becomes a row. The next step of the same batch reuses the merged state without a merge. If
anything else uses a row, the row is copied out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

if TYPE_CHECKING:
    from ...model.patching import Patching

RUNNER = "sglang.srt.hardware_backend.mlx.model_runner:MlxModelRunner"

COUNTS: Counter[str] = Counter()
"""Counts for this process, per layer: ``merges`` by stock, ``steps`` that needed none, and
``cuts``, which copy a request's state out of a merged one."""


def install(patching: Patching) -> None:
    """Keep merged states of mlx-lm's ``ArraysCache``; stock handles other classes."""
    ran = patching.ran
    arrays_cache = patching.module("mlx_lm.models.cache").ArraysCache
    row_class, merged_class = _row_class(arrays_cache), _merged_class(arrays_cache)
    # A batch lives as long as a row of it that is not copied out, and as long as its step.
    batches: WeakSet[_Batch] = WeakSet()
    patching.drain(lambda: not batches, "no request's recurrent state is part of a merged one")

    def make_decode(inner: Callable[..., Any]) -> Callable[..., Any]:
        def decode_auxiliary_layer(
            self: Any, layer: Any, hidden_states: Any, layer_caches: list[Any]
        ) -> Any:
            """Copy rows out unless they are a whole batch, since stock checks their class."""
            if _batch_of(layer_caches, row_class) is None:
                for cache in layer_caches:
                    if type(cache) is row_class:
                        vars(cache)["_batch"].cut_all(row_class)
            return inner(self, layer, hidden_states, layer_caches)

        return decode_auxiliary_layer

    def make_merge(inner: Callable[..., Any]) -> Callable[..., Any]:
        def merge_auxiliary_caches(layer_caches: list[Any]) -> Any:
            """Merge the states of a layer's requests into one."""
            batch = _batch_of(layer_caches, row_class)
            if batch is not None:
                ran.seen = True
                COUNTS["steps"] += 1
                return batch.begin()
            COUNTS["merges"] += 1
            merged = inner(layer_caches)
            if type(merged) is arrays_cache and _is_plain(merged):
                made = _Batch(merged, len(layer_caches), merged_class)
                batches.add(made)
                return made.begin()
            return merged

        return merge_auxiliary_caches

    def make_replace(inner: Callable[..., None]) -> Callable[..., None]:
        def replace_cache_contents(cache: Any, new_cache: Any) -> None:
            """Turn a request's cache into a row, where stock would store the split-off state."""
            if type(new_cache) is not _Place:
                return inner(cache, new_cache)
            vars(cache).clear()
            vars(cache).update(_batch=new_cache.batch, _number=new_cache.number)
            vars(cache).update(left_padding=None, lengths=None)
            cache.__class__ = row_class
            new_cache.batch.rows[new_cache.number] = ref(cache)
            return None

        return replace_cache_contents

    def make_arrays(inner: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def cache_arrays(cache: Any) -> list[Any]:
            """The arrays that a step evaluates; for a row, those of the merged state."""
            if type(cache) is row_class:
                return list(vars(cache)["_batch"].merged.cache)
            return inner(cache)

        return cache_arrays

    patching.override(f"{RUNNER}._decode_auxiliary_layer", make_decode)
    patching.override(f"{RUNNER}._merge_auxiliary_caches", make_merge)
    patching.override(f"{RUNNER}._replace_cache_contents", make_replace)
    patching.override(f"{RUNNER}._cache_arrays", make_arrays)


class _Batch:
    """A merged state of one layer that is kept.

    Attributes:
        merged: stock's cache object with the state of all requests.
        size: number of requests.
        rows: weak references to the requests' caches, so that a cache is freed with its request.
    """

    def __init__(self, merged: Any, size: int, merged_class: Any) -> None:
        self.merged, self.size = merged, size
        self.rows: list[Callable[[], Any]] = [lambda: None] * size
        self._before: list[Any] | None = None
        merged.__class__ = merged_class

    def begin(self) -> Any:
        """The state for a step, without the changes of a failed step."""
        self._settle()
        self._before = list(self.merged.cache)
        # Only during the step: otherwise the two form a cycle and live until Python collects it.
        vars(self.merged)["_batch"] = self
        return self.merged

    def place(self, number: int) -> _Place:
        """A request's state after a step."""
        self._before = None
        if number == self.size - 1:
            vars(self.merged).pop("_batch", None)
        return _Place(self, number)

    def cut_out(self, number: int) -> list[Any]:
        """A request's arrays, as stock splits them off."""
        self._settle()
        COUNTS["cuts"] += 1
        return [array[number : number + 1] for array in self.merged.cache]

    def cut_all(self, row_class: Any) -> None:
        """Copy out all rows that are still here: a changed batch does not return."""
        found: list[Any] = [each() for each in self.rows]
        for row in found:
            if type(row) is row_class and vars(row)["_batch"] is self:
                row.cut_out()

    def _settle(self) -> None:
        if self._before is not None:
            self.merged.cache, self._before = self._before, None


class _Place:
    """Where a request's state is; replaces a cache that stock would split off."""

    __slots__ = ("batch", "number")

    def __init__(self, batch: _Batch, number: int) -> None:
        self.batch, self.number = batch, number


def _row_class(arrays_cache: Any) -> Any:
    # The class has the name of stock's, since stock checks the name.
    class ArraysCache(arrays_cache):  # type: ignore[misc]
        """A request's cache; its state is part of a merged one until something else uses it."""

        def cut_out(self) -> Any:
            """Turn back into stock's own object."""
            batch, number = self.__dict__.pop("_batch"), self.__dict__.pop("_number")
            self.__class__ = arrays_cache
            self.cache = batch.cut_out(number)
            return self.cache

        def _put(self, arrays: list[Any]) -> None:
            self.cut_out()
            self.cache = arrays

        cache = property(cut_out, _put)

    return ArraysCache


def _merged_class(arrays_cache: Any) -> Any:
    class ArraysCache(arrays_cache):  # type: ignore[misc]
        """The state of a batch, which stock uses during a step."""

        def extract(self, number: int) -> _Place:
            """Return a place instead of a copy."""
            batch: _Batch = vars(self)["_batch"]
            return batch.place(number)

    return ArraysCache


def _batch_of(layer_caches: Sequence[Any], row_class: type) -> _Batch | None:
    """The batch whose rows these are, if all its rows are here, in order; else None."""
    first = layer_caches[0] if layer_caches else None
    if type(first) is not row_class:
        return None
    batch: _Batch = vars(first)["_batch"]
    if batch.size != len(layer_caches):
        return None
    for number, cache in enumerate(layer_caches):
        if type(cache) is not row_class:
            return None
        held = vars(cache)
        if held["_batch"] is not batch or held["_number"] != number:
            return None
    return batch


def _is_plain(merged: Any) -> bool:
    """Whether a merged state consists of arrays only, like that of a decode step."""
    has_lengths = merged.left_padding is not None or merged.lengths is not None
    return not has_lengths and all(array is not None for array in merged.cache)
