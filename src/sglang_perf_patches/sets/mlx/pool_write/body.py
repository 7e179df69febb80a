"""``mlx.pool-write``: a request writes a copy of its tokens into the radix cache's pool.

Stock queues the write: the pool's next array references the request's buffers until something
reads the pool. Meanwhile MLX keeps all of those buffers, and copies them on each write. Done at
once, the first write would bring the pool with all of its slots into memory: see `Buffers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, SupportsIndex
from weakref import WeakSet

from ..references import RUNNER
from . import ATTENTION_PREFIX, BEFORE, PATCH, PREFIX, SINCE, of_pool

LEAST = 256  # slots of an unused pool; larger ones are multiples of it

_WRITES = "_sglang_perf_patches_writes"


class _Writes:
    """The writes into a pool since its last evaluation."""

    def __init__(self, waiting: WeakSet[_Writes]) -> None:
        self.waiting = waiting  # all that have something postponed or copied; see `copy`
        self.postponed: list[Callable[[], None]] = []  # to queue once the device has its work
        self.copies: list[Any] = []  # unevaluated, (layers, tokens, n_kv_heads, head_dim)
        # An unfinished prefill reads the pool. Until it is done, MLX would copy the pool to write.
        self.is_read = False
        self.is_queued = False  # the pool has unevaluated writes

    def queue(self) -> None:
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


class Buffers(list[Any]):
    """K or V of a pool, by layer: (slots, n_kv_heads, head_dim), with fewer slots than the pool.

    Stock's buffers have all slots from the first write on. Here a pool starts with a few, and a
    write or read of a higher slot enlarges its buffers. Unwritten slots are zeros, as in stock.

    | who takes a layer's buffer | gets |
    | --- | --- |
    | stock's own reads and writes, within `taking` | the buffer as it is, for slots that it has |
    | any other code: the same without the patch, stock's fused RoPE kernel | all slots |

    So nothing waits for the buffers when the patch is removed: what is taken then has all slots.
    """

    def __init__(self, core: Any, arrays: Sequence[Any], slots: int) -> None:
        super().__init__(arrays)
        self._core, self.slots = core, slots  # ``mlx.core``; how many slots the pool has
        self.has_checked = False  # whoever takes a buffer knows that it has the slots they need
        self.checked: Any = None  # the slots that were checked last

    def __getitem__(self, layer: SupportsIndex) -> Any:  # type: ignore[override]
        """A layer's buffer, with all slots unless the caller `has_checked`."""
        if not self.has_checked:
            self.widen(layer, self.slots)
        return super().__getitem__(layer)

    def widen(self, layer: SupportsIndex, slots: int) -> bool:
        """Give a layer's buffer that many slots, with zeros behind its own; whether it grew."""
        array = super().__getitem__(layer)
        held, *shape = array.shape
        if held >= slots:
            return False
        zeros = self._core.zeros((slots - held, *shape), dtype=array.dtype)
        self[layer] = self._core.concatenate([array, zeros])
        return True

    def hold(self, needed: int) -> None:
        """Enlarge buffers that are too small layer by layer, so only one is in memory twice."""
        held = min(int(array.shape[0]) for array in self)
        if needed > held:
            # By a quarter at least, so each slot is copied some four times in the pool's life.
            room = max(needed, held + held // 4)
            room = min(-(-room // LEAST) * LEAST, self.slots)
            for layer in range(len(self)):
                if self.widen(layer, room):
                    self._core.eval(super().__getitem__(layer))


@contextmanager
def taking(pool: Any, slots: Any) -> Iterator[None]:
    """Within the block, stock's code takes buffers that have these slots, (tokens,) int32."""
    both = pool.k_buffer, pool.v_buffer
    if not all(type(buffers) is Buffers for buffers in both):
        yield  # made before the patch was on: it has all slots
        return
    if any(buffers.checked is not slots for buffers in both):  # a prefill's layers share an array
        # The host has made this array from a list, so no device is waited for.
        needed = max(memoryview(slots), default=-1) + 1
        for buffers in both:
            buffers.hold(needed)
            buffers.checked = slots
    for buffers in both:
        buffers.has_checked = True
    try:
        yield
    finally:
        for buffers in both:
            buffers.has_checked = False


@PATCH.setup()
def setup(patch):
    patch.state.core = patch.module("mlx.core")
    waiting: WeakSet[_Writes] = WeakSet()
    patch.state.waiting = waiting
    # Without the patch nothing does a postponed write, and later prefix hits would read slots that
    # hold other tokens. The prefill's end does it, or whatever reads or writes the pool next.
    patch.drain(lambda: not waiting, "what a prefill has computed is in the pool")


def _pool_of(runner):
    """The runner's pool, whose attribute has another name up to 0.5.12.post1; None without."""
    return getattr(runner, "_attention_kv_pool", None) or getattr(runner, "_kv_pool", None)


def _writes_of(patch, pool):
    writes = vars(pool).get(_WRITES)
    if writes is None or writes.waiting is not patch.state.waiting:
        writes = vars(pool)[_WRITES] = _Writes(patch.state.waiting)
    return writes


@PATCH.replaces(f"{RUNNER}._sync_new_kv_to_pool")
def _sync_new_kv_to_pool(self, cache, cache_start, slot_ids, *, patch, stock):
    """Postpone the write of a prompt's tokens until the device has the prompt.

    Its graph takes the host an eighth as long as the prefill's. Only the request's next steps
    append to its buffers, so the tokens are the same then.
    """
    pool = _pool_of(self)
    if pool is None or not slot_ids:
        stock(self, cache, cache_start, slot_ids)
        return
    writes = _writes_of(patch, pool)
    patch.state.waiting.add(writes)
    writes.postponed.append(partial(stock, self, cache, cache_start, slot_ids))


@PATCH.replaces(of_pool("set_kv_all_layers"))
def set_kv_all_layers(self, slots, k_all, v_all, *, patch, stock):
    """Queue a write of (layers, tokens, n_kv_heads, head_dim) into the slots."""
    with taking(self, slots):
        stock(self, slots, _layers(k_all), _layers(v_all))
    patch.ran.seen = True
    writes = _writes_of(patch, self)
    patch.state.waiting.add(writes)
    writes.copies += [k_all, v_all]
    writes.is_queued = True


@PATCH.replaces(
    {BEFORE: f"{PREFIX}.update_and_fetch", SINCE: f"{ATTENTION_PREFIX}.update_and_fetch"}
)
def update_and_fetch(self, keys, values, *, patch, stock):
    """Check the slots of the prefix, an array that the layers share, for `get_kv`.

    That gets a slice of its own in each layer; checking it would double a prefill's building time.
    """
    with _reading(patch, self._pool, self._slots):
        return stock(self, keys, values)


@PATCH.replaces(of_pool("get_kv"))
def get_kv(self, layer_id, slots, *, patch, stock):
    """Read from buffers that have the slots."""
    if getattr(self.k_buffer, "has_checked", False):  # within `taking`, with these slots or more
        return stock(self, layer_id, slots)
    with _reading(patch, self, slots):
        return stock(self, layer_id, slots)


def _reading(patch, pool, slots):
    writes = _writes_of(patch, pool)
    writes.queue()  # the read may be of what they write
    writes.is_read = True
    return taking(pool, slots)


@PATCH.replaces(of_pool("__init__"), of_pool("clear"))
def start_over(self, *args, patch, stock, **kwargs):
    """Make or clear a pool: nothing waits, and its buffers have few slots again."""
    writes, core = vars(self).pop(_WRITES, None), patch.state.core
    if writes is not None:
        writes.waiting.discard(writes)
    stock(self, *args, **kwargs)
    shape = (min(LEAST, self.pool_size), self.n_kv_heads, self.head_dim)
    for name in ("k_buffer", "v_buffer"):
        # Zeros take no memory until the first write.
        arrays = [core.zeros(shape, dtype=self.dtype) for _ in range(self.num_layers)]
        setattr(self, name, Buffers(core, arrays, self.pool_size))


@PATCH.replaces(f"{RUNNER}.prefill_finalize")
def prefill_finalize(self, pending, *, patch, stock):
    """Copy while stock waits for the prefill's token; the next step writes the buffers."""
    pool = _pool_of(self)
    if pool is None:
        return stock(self, pending)
    writes = _writes_of(patch, pool)
    writes.copy(patch.state.core)
    token = stock(self, pending)
    writes.is_read = False
    return token


@PATCH.replaces(f"{RUNNER}.extend_finalize")
def extend_finalize(self, pending, *, patch, stock):
    """Write while stock waits for the chunk."""
    _evaluate(patch, self)
    return stock(self, pending)


@PATCH.replaces(f"{RUNNER}.decode_batch_finalize")
def decode_batch_finalize(self, pending, *, patch, stock):
    """Write what the prompts before the step have queued, which frees the copies."""
    tokens = stock(self, pending)
    _evaluate(patch, self, if_idle=True)
    return tokens


@PATCH.replaces(f"{RUNNER}._sync_decode_kv_to_pool")
def sync_decode_kv_to_pool(self, *args, patch, stock, **kwargs):
    """When a request ends, write its decoded tokens and the queued ones of its prompt."""
    stock(self, *args, **kwargs)
    _evaluate(patch, self)


def _evaluate(patch, runner, *, if_idle=False):
    """Write; with `if_idle`, only if something is queued and no prefill is unfinished."""
    pool = _pool_of(runner)
    if pool is not None:
        writes = _writes_of(patch, pool)
        if not if_idle or (writes.is_queued and not writes.is_read and not writes.postponed):
            writes.evaluate(patch.state.core, pool)


def _layers(stacked: Any) -> list[Any]:
    """Each layer's part, by a slice: a number, as in stock, would copy it."""
    return [stacked[layer : layer + 1].squeeze(0) for layer in range(stacked.shape[0])]
