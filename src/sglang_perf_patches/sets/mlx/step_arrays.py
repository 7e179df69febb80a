"""``mlx.core`` as sglang's attention wrapper sees it, with arrays that one decode step shares.

The wrapper runs once per layer, and reaches ``mlx.core`` by a name of its module. A patch puts a
`StepArrays` under that name: a call that makes the same array in each layer then makes it in the
first one, and the others are given it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...model.patching import Patching

WRAPPER = "sglang.srt.hardware_backend.mlx.kv_cache.attention_wrapper"
"""The module of the batched decode: its context, and the wrapper around each attention layer."""

CORE = f"{WRAPPER}:mx"
"""The name by which that module reaches ``mlx.core``."""

_KEPT = "_sglang_perf_patches_arrays"


class StepArrays:
    """Everything is the module's own but for the functions that a subclass defines.

    Those keep what they make in `kept`, on the context that is set while a decode step runs: a new
    one for each step, shared by its layers.
    """

    def __init__(self, inner: Any, patching: Patching) -> None:
        """Stand in front of `inner`: ``mlx.core``, or what another patch has put before it."""
        self._inner = inner
        self._ran = patching.ran
        self._context: Callable[[], Any] = patching.get(f"{WRAPPER}:get_context")

    def __getattr__(self, name: str) -> Any:
        """Answer by `inner`; only the first time, as a layer asks for some names per request."""
        value = getattr(self._inner, name)
        setattr(self, name, value)
        return value

    def kept(self) -> dict[Hashable, Any]:
        """What the current step has made so far; outside a step nothing, and nothing is kept."""
        context = self._context()
        if context is None:
            return {}
        self._ran.seen = True
        arrays: dict[Hashable, Any] = vars(context).setdefault(_KEPT, {})
        return arrays
