"""Makes the arrays of lengths once per decode step (only for one unreleased commit).

This is the change of sgl-project/sglang#23470, for source builds that have the decode context but
not that change. The attention wrapper runs once per layer, and accesses ``mlx.core`` through a name
in its module. Under that name the patch puts `_LengthArrays`.
"""

from __future__ import annotations

from ....model.declaration import Declaration, ports
from ....model.patch import Marker
from ..proven import ANY, WITHOUT_CACHE
from ..references import BATCHED_DECODE, CORE, USERS, WRAPPER

PATCH = Declaration(
    *(__name__, "git-5b9fbc51dcff"),
    only_with=("mlx",),
    proven_with=dict.fromkeys((*ANY, *WITHOUT_CACHE), "tests/mlx/test_decode_context.py"),
    worth=ports("sgl-project/sglang#23470"),
    upstream=("sgl-project/sglang#23470",),
    built_in_since="0.5.11",
    markers=(
        Marker(
            definition=f"{WRAPPER}:BatchedDecodeContext.__post_init__",
            contains="self.valid_lens =",
        ),
        Marker(definition=BATCHED_DECODE, contains="ctx.offsets"),
    ),
    absent_because="MLX has no batched decode context before 0.5.11 (#22416)",
    depends=USERS,
    anytime="what layers share is stock's own arrays, kept on the context of their step",
)


@PATCH.makes(CORE)
class _LengthArrays:
    """``mlx.core``; its arrays of lengths are kept on a step's context, which its layers share."""

    def __init__(self, patch, stock):
        self._inner, self._ran = stock, patch.ran
        self._context = patch.get(f"{WRAPPER}:get_context")

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def array(self, values, dtype=None):
        """The lengths of the step's requests, (batch,) int32; a mask's constants as in stock."""
        if not isinstance(values, list):
            return self._inner.array(values, dtype=dtype)
        key = "array", tuple(values), dtype
        return self._kept(key, lambda: self._inner.array(values, dtype=dtype))

    def arange(self, stop):
        """The positions of the longest request, (stop,) int32."""
        return self._kept(("arange", stop), lambda: self._inner.arange(stop))

    def _kept(self, key, make):
        """An array that the step's layers share; outside a step, a new one each time."""
        context = self._context()
        if context is None:
            return make()
        self._ran.seen = True
        arrays = vars(context).setdefault("_sglang_perf_patches_arrays", {})
        if key not in arrays:
            arrays[key] = make()
        return arrays[key]
