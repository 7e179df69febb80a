"""``mlx.decode-context``: creates the arrays of sequence lengths once per decode step.

This is the change of sgl-project/sglang#23470, for source builds that have the decode context but
not that change. The attention wrapper runs once per layer, and accesses ``mlx.core`` through a name
in its module. Under that name the patch puts `_LengthArrays`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from ....model.patching import Patching
from ..references import CORE, WRAPPER

_KEPT = "_sglang_perf_patches_arrays"


def install(patching: Patching) -> None:
    """Let the layers of a step share the arrays computed from the sequence lengths."""
    patching.anytime("what layers share is stock's own arrays, kept on the context of their step")
    patching.override(CORE, lambda inner: _LengthArrays(inner, patching))


class _LengthArrays:
    """``mlx.core``, whose arrays of lengths are kept on the context of the running decode step.

    Each step has a new context, which its layers share.
    """

    def __init__(self, inner: Any, patching: Patching) -> None:
        """Wrap `inner`: ``mlx.core``, or another patch's wrapper around it."""
        self._inner = inner
        self._ran = patching.ran
        self._context: Callable[[], Any] = patching.get(f"{WRAPPER}:get_context")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def array(self, values: Any, dtype: Any = None) -> Any:
        """The lengths of the step's requests, (batch,) int32; a mask's constants as in stock."""
        if not isinstance(values, list):
            return self._inner.array(values, dtype=dtype)
        key = "array", tuple(values), dtype
        return self._kept(key, lambda: self._inner.array(values, dtype=dtype))

    def arange(self, stop: int) -> Any:
        """The positions of the longest request, (stop,) int32."""
        return self._kept(("arange", stop), lambda: self._inner.arange(stop))

    def _kept(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """An array that the step's layers share; outside a step, a new one each time."""
        context = self._context()
        if context is None:
            return make()
        self._ran.seen = True
        arrays: dict[Hashable, Any] = vars(context).setdefault(_KEPT, {})
        if key not in arrays:
            arrays[key] = make()
        return arrays[key]
