"""``mlx.decode-context``: arrays of the sequence lengths are made once per decode step.

The change of sgl-project/sglang#23470, for source builds that have the decode context but not yet
that change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .step_arrays import CORE, StepArrays

if TYPE_CHECKING:
    from ...model.patching import Patching


def install(patching: Patching) -> None:
    """Let the layers of a step share what they compute from the sequence lengths."""
    patching.override(CORE, lambda inner: _LengthArrays(inner, patching))


class _LengthArrays(StepArrays):
    def array(self, values: Any, dtype: Any = None) -> Any:
        """The lengths of the step's requests, (batch,) int32; the constants of a mask as stock."""
        if not isinstance(values, list):
            return self._inner.array(values, dtype=dtype)
        kept, key = self.kept(), ("array", tuple(values), dtype)
        if key not in kept:
            kept[key] = self._inner.array(values, dtype=dtype)
        return kept[key]

    def arange(self, stop: int) -> Any:
        """The positions up to the longest request's, (stop,) int32."""
        kept, key = self.kept(), ("arange", stop)
        if key not in kept:
            kept[key] = self._inner.arange(stop)
        return kept[key]
