"""``mlx.decode-context``: creates the arrays of sequence lengths once per decode step.

This is the change of sgl-project/sglang#23470, for source builds that have the decode context but
not that change.
"""

from __future__ import annotations

from typing import Any

from ....model.patching import Patching
from ..references import CORE
from ..step_arrays import StepArrays


def install(patching: Patching) -> None:
    """Let the layers of a step share the arrays computed from the sequence lengths."""
    patching.anytime("what layers share is stock's own arrays, kept on the context of their step")
    patching.override(CORE, lambda inner: _LengthArrays(inner, patching))


class _LengthArrays(StepArrays):
    def array(self, values: Any, dtype: Any = None) -> Any:
        """The lengths of the step's requests, (batch,) int32; a mask's constants as in stock."""
        if not isinstance(values, list):
            return self._inner.array(values, dtype=dtype)
        kept, key = self.kept(), ("array", tuple(values), dtype)
        if key not in kept:
            kept[key] = self._inner.array(values, dtype=dtype)
        return kept[key]

    def arange(self, stop: int) -> Any:
        """The positions of the longest request, (stop,) int32."""
        kept, key = self.kept(), ("arange", stop)
        if key not in kept:
            kept[key] = self._inner.arange(stop)
        return kept[key]
