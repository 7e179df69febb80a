"""A pool whose buffers have room for the slots that are in use, and grow with them.

Stock's buffers have all slots from the first write on. Here a pool starts with a few, and a write
or read of a higher slot enlarges its buffers. Unwritten slots are zeros, as in stock.

| who takes a layer's buffer | gets |
| --- | --- |
| stock's own reads and writes, within `taking` | the buffer as it is, for slots that it has |
| any other code: the same without the patch, stock's fused RoPE kernel | all slots |

So nothing waits for the buffers when the patch is removed: what is taken then has all slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, SupportsIndex

LEAST = 256  # slots of an unused pool; larger ones are multiples of it


class Buffers(list[Any]):
    """K or V of a pool, by layer: (slots, n_kv_heads, head_dim), with fewer slots than the pool."""

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


def empty(core: Any, pool: Any) -> None:
    """Give an empty pool buffers with few slots; they take memory at the first write."""
    shape = (min(LEAST, pool.pool_size), pool.n_kv_heads, pool.head_dim)
    for name in ("k_buffer", "v_buffer"):
        arrays = [core.zeros(shape, dtype=pool.dtype) for _ in range(pool.num_layers)]
        setattr(pool, name, Buffers(core, arrays, pool.pool_size))


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


def is_checked(pool: Any) -> bool:
    """Whether stock's code is within `taking`, with the slots that it reads now or more."""
    return type(pool.k_buffer) is Buffers and pool.k_buffer.has_checked
