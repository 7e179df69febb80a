"""How ``mlx.first-buffer`` ends where stock's batched decode does not grow a buffer.

Up to 0.5.14 a request whose buffers are smaller than stock's would lose tokens without the patch.
So the patch stays while there is one. Stock holds a finished request's caches until another
request decodes, so an idle server has such a request, and so has a busy one. Therefore, while the
patch is to be taken off, the start of the next prompt gives all requests buffers of stock's size,
and new requests begin with such buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from .buffer_growth import doubled


class Ending:
    """The requests of one release's cache class, and whether the patch is about to go."""

    def __init__(self, core: Any, cache_class: Any, is_near: Callable[[], bool]) -> None:
        """Of stock's cache of one request and layer, `cache_class`.

        Args:
            core: the module ``mlx.core``.
            cache_class: see above.
            is_near: whether the patch is about to go.
        """
        self._core, self._cache_class = core, cache_class
        self.is_near = is_near
        # Replaced, never changed, because another thread may read them.
        self._runners: tuple[ref[Any], ...] = ()
        self._prefills: tuple[tuple[ref[Any], int], ...] = ()

    def is_idle(self) -> bool:
        """Whether each request has buffers of stock's size; any thread may ask."""
        held = [
            (caches, runner._max_seq_len)
            for runner in (each() for each in self._runners)
            if runner is not None
            for caches in list(runner._req_caches.values())
        ]
        held += [
            (prefill.cache, room)
            for prefill, room in ((each(), room) for each, room in self._prefills)
            if prefill is not None
        ]
        return not any(self._is_narrow(each, room) for caches, room in held for each in caches)

    def begin(self, runner: Any) -> None:
        """A prompt starts: note its runner, and widen what the runner's requests have."""
        if not any(each() is runner for each in self._runners):
            self._runners = (*(each for each in self._runners if each() is not None), ref(runner))
        if self.is_near():
            for caches in runner._req_caches.values():
                self.widen(caches, runner._max_seq_len)

    def note(self, runner: Any, prefill: Any) -> None:
        """A prefill's graph is built; its runner holds the caches only from its end on."""
        held = (each for each in self._prefills if each[0]() is not None)
        self._prefills = (*held, (ref(prefill), runner._max_seq_len))

    def widen(self, caches: list[Any], room: int) -> None:
        """Give a request's caches the size that they would have in stock.

        Args:
            caches: by layer; those of other classes stay.
            room: the size that stock begins with, in tokens.
        """
        for cache in caches:
            if not self._is_narrow(cache, room):
                continue
            room_now = doubled(room, cache.offset)
            # A row of a batch's arena gets buffers of this size when it leaves the arena.
            if type(cache) is self._cache_class:
                cache.keys, cache.values = (
                    self._widened(array, cache.offset, room_now)
                    for array in (cache.keys, cache.values)
                )
            cache.max_seq_len = room_now

    def _is_narrow(self, cache: Any, room: int) -> bool:
        if not isinstance(cache, self._cache_class):
            return False
        return bool(cache.max_seq_len < doubled(room, cache.offset))

    def _widened(self, array: Any, tokens: int, room: int) -> Any:
        if array is None:
            return None
        batch, heads, _, head_dim = array.shape
        zeros = self._core.zeros((batch, heads, room - tokens, head_dim), dtype=array.dtype)
        return self._core.concatenate([array[:, :, :tokens], zeros], axis=2)
