"""Creates padding and mask once per decode step, not in each layer that stock handles."""

from __future__ import annotations

from typing import Any

from ..step_arrays import StepArrays


class PaddingAndMask(StepArrays):
    """``mlx.core`` with one array of zeros per shape and one mask per dtype in a step."""

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Zeros that pad a shorter request, (1, n_kv_heads, pad, head_dim)."""
        kept, key = self.kept(), ("zeros", shape, dtype)
        if key not in kept:
            kept[key] = self._inner.zeros(shape, dtype=dtype)
        return kept[key]

    def where(self, condition: Any, masked: Any, unmasked: Any) -> Any:
        """The additive mask, (batch, 1, 1, max_len), in the queries' dtype.

        `condition` depends only on the step's lengths and `masked` only on the dtype, so the dtype
        identifies a mask within a step. In later layers `condition` is never evaluated.
        """
        kept, key = self.kept(), ("where", condition.shape, masked.dtype)
        if key not in kept:
            kept[key] = self._inner.where(condition, masked, unmasked)
        return kept[key]
