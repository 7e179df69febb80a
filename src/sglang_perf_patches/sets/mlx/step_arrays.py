"""Replaces ``mlx.core`` in sglang's attention wrapper, to share arrays within a decode step.

The wrapper runs once per layer, and accesses ``mlx.core`` through a name in its module. A patch
puts a `StepArrays` under that name. A call that creates the same array in each layer then creates
it only in the first one; the other layers reuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from ...model.patching import Patching
from .references import WRAPPER

_KEPT = "_sglang_perf_patches_arrays"


class StepArrays:
    """Forwards everything to the module, except the functions that a subclass defines.

    Those store their arrays in `kept`, on the context of the running decode step. Each step has a
    new context, which its layers share.
    """

    def __init__(self, inner: Any, patching: Patching) -> None:
        """Wrap `inner`: ``mlx.core``, or another patch's wrapper around it."""
        self._inner = inner
        self._ran = patching.ran
        self._context: Callable[[], Any] = patching.get(f"{WRAPPER}:get_context")

    def __getattr__(self, name: str) -> Any:
        """Look a name up in `inner` once, since a layer uses some names per request."""
        value = getattr(self._inner, name)
        setattr(self, name, value)
        return value

    def kept(self) -> dict[Hashable, Any]:
        """The arrays of the current step so far; outside a step, an empty dictionary each time."""
        context = self._context()
        if context is None:
            return {}
        self._ran.seen = True
        arrays: dict[Hashable, Any] = vars(context).setdefault(_KEPT, {})
        return arrays
