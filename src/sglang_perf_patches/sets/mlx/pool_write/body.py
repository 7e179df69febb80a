"""``mlx.pool-write``: a request writes a copy of its tokens into the radix cache's pool.

Stock queues the write: the pool's next array references the request's buffers until something
reads the pool. Meanwhile MLX keeps all of those buffers, and copies them on each write. Done at
once, the first write would bring the pool with all of its slots into memory: see `room`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

from ....model.patching import Patching, replaces
from ..references import RUNNER
from . import ATTENTION_POOL, ATTENTION_PREFIX, KV_POOL, PREFIX, room

_WRITES = "_sglang_perf_patches_writes"


def install_contiguous(patching: Patching) -> None:
    """Install on 0.5.11 to 0.5.12.post1."""
    _install(patching, KV_POOL, PREFIX, "_kv_pool")


def install_attention(patching: Patching) -> None:
    """Install on releases from 0.5.13 on."""
    _install(patching, ATTENTION_POOL, ATTENTION_PREFIX, "_attention_kv_pool")


class _Writes:
    """The writes into a pool since its last evaluation.

    Attributes:
        waiting: all that have something postponed or copied; this one enters and leaves it.
        postponed: writes to queue when the device has its work, instead of before.
        copies: unevaluated copies of the tokens, (layers, tokens, n_kv_heads, head_dim).
        is_read: an unfinished prefill reads the pool. Until it is done, MLX would copy the pool
            to write into it.
        is_queued: the pool has unevaluated writes.
    """

    def __init__(self, waiting: WeakSet[_Writes]) -> None:
        self.waiting = waiting
        self.postponed: list[Callable[[], None]] = []
        self.copies: list[Any] = []
        self.is_read = self.is_queued = False

    def queue(self) -> None:
        """Queue the postponed writes, in their order."""
        while self.postponed:
            self.postponed.pop(0)()

    def copy(self, core: Any) -> None:
        """Evaluate the copies, so that no write references a request's buffers."""
        self.queue()
        if self.copies:
            core.async_eval(self.copies)
            self.copies = []
        self.waiting.discard(self)

    def evaluate(self, core: Any, pool: Any) -> None:
        """Write; while a prefill reads the pool, only copy: a later write or read evaluates it."""
        self.queue()
        if self.is_queued and not self.is_read:
            core.async_eval(pool.k_buffer, pool.v_buffer)
            self.copies, self.is_queued = [], False
        self.copy(core)


def _install(patching: Patching, pool: str, prefix: str, attribute: str) -> None:
    core: Any = patching.module("mlx.core")
    ran = patching.ran
    waiting: WeakSet[_Writes] = WeakSet()
    # Without the patch nothing does a postponed write, and later prefix hits would read slots that
    # hold other tokens. The prefill's end does it, or whatever reads or writes the pool next.
    patching.drain(lambda: not waiting, "what a prefill has computed is in the pool")

    def writes_of(pool: Any) -> _Writes:
        writes: _Writes | None = vars(pool).get(_WRITES)
        if writes is None or writes.waiting is not waiting:
            writes = vars(pool)[_WRITES] = _Writes(waiting)
        return writes

    @replaces(patching, f"{RUNNER}._sync_new_kv_to_pool")
    def _sync_new_kv_to_pool(
        self: Any, cache: Any, cache_start: int, slot_ids: Any, *, inner: Any
    ) -> None:
        """Postpone the write of a prompt's tokens until the device has the prompt.

        Building the write's graph takes the host an eighth of the time that it takes to build
        a prefill. The tokens are the same then: nothing but the request's next steps appends
        to its buffers.
        """
        pool = getattr(self, attribute)
        if pool is None or not slot_ids:
            inner(self, cache, cache_start, slot_ids)
            return
        writes = writes_of(pool)
        waiting.add(writes)
        writes.postponed.append(partial(inner, self, cache, cache_start, slot_ids))

    @replaces(patching, f"{pool}.set_kv_all_layers")
    def set_kv_all_layers(self: Any, slots: Any, k_all: Any, v_all: Any, *, inner: Any) -> None:
        """Queue a write of (layers, tokens, n_kv_heads, head_dim) into the slots.

        Stock takes each layer's tokens by a number, which copies them; a slice does not.
        """
        with room.taking(self, slots):
            inner(self, slots, _layers(k_all), _layers(v_all))
        ran.seen = True
        writes = writes_of(self)
        waiting.add(writes)
        writes.copies += [k_all, v_all]
        writes.is_queued = True

    def evaluate(runner: Any, *, if_idle: bool = False) -> None:
        """Write; with `if_idle`, only if something is queued and no prefill is unfinished."""
        pool = getattr(runner, attribute)
        if pool is not None:
            writes = writes_of(pool)
            if not if_idle or (writes.is_queued and not writes.is_read and not writes.postponed):
                writes.evaluate(core, pool)

    def note_read(pool: Any) -> None:
        writes = writes_of(pool)
        writes.queue()  # the read may be of what they write
        writes.is_read = True

    def make_fetch(inner: Callable[..., Any]) -> Callable[..., Any]:
        def update_and_fetch(self: Any, keys: Any, values: Any) -> Any:
            """Check the slots of the prefix, an array that the layers share, for `get_kv`.

            That gets a slice of its own in each layer, and to check it would double the time of
            building a prefill.
            """
            note_read(self._pool)
            with room.taking(self._pool, self._slots):
                return inner(self, keys, values)

        return update_and_fetch

    def make_get(inner: Callable[..., Any]) -> Callable[..., Any]:
        def get_kv(self: Any, layer_id: int, slots: Any) -> Any:
            """Read from buffers that have the slots."""
            if room.is_checked(self):
                return inner(self, layer_id, slots)
            note_read(self)
            with room.taking(self, slots):
                return inner(self, layer_id, slots)

        return get_kv

    @replaces(patching, f"{pool}.clear")
    def clear(self: Any, *, inner: Any) -> None:
        """Forget the writes, and start over with empty buffers."""
        writes = vars(self).pop(_WRITES, None)
        if writes is not None:
            writes.waiting.discard(writes)
        inner(self)
        room.empty(core, self)

    @replaces(patching, f"{pool}.__init__")
    def init(self: Any, *args: Any, inner: Any, **kwargs: Any) -> None:
        """Make a pool, with buffers that grow."""
        inner(self, *args, **kwargs)
        room.empty(core, self)

    @replaces(patching, f"{RUNNER}.prefill_finalize")
    def prefill_finalize(self: Any, pending: Any, *, inner: Any) -> Any:
        """Copy while stock waits for the prefill's token; the next step writes the buffers."""
        read = getattr(self, attribute)
        if read is None:
            return inner(self, pending)
        writes = writes_of(read)
        writes.copy(core)
        token = inner(self, pending)
        writes.is_read = False
        return token

    @replaces(patching, f"{RUNNER}.extend_finalize")
    def extend_finalize(self: Any, pending: Any, *, inner: Any) -> Any:
        """Write while stock waits for the chunk."""
        evaluate(self)
        return inner(self, pending)

    @replaces(patching, f"{RUNNER}.decode_batch_finalize")
    def decode_batch_finalize(self: Any, pending: Any, *, inner: Any) -> list[int]:
        """Write what the prompts before the step have queued, which frees the copies.

        Stock has read all prompts before the first step after them, so nothing reads the pool.
        """
        tokens: list[int] = inner(self, pending)
        evaluate(self, if_idle=True)
        return tokens

    @replaces(patching, f"{RUNNER}._sync_decode_kv_to_pool")
    def sync_decode_kv_to_pool(self: Any, *args: Any, inner: Any, **kwargs: Any) -> None:
        """When a request ends, write its decoded tokens and the queued ones of its prompt."""
        inner(self, *args, **kwargs)
        evaluate(self)

    patching.override(f"{pool}.get_kv", make_get)
    patching.override(f"{prefix}.update_and_fetch", make_fetch)


def _layers(stacked: Any) -> list[Any]:
    """Each layer's part of an array, without a copy."""
    return [stacked[layer : layer + 1].squeeze(0) for layer in range(stacked.shape[0])]
