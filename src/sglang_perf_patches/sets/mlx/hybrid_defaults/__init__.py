"""Gives hybrid models on MLX default arguments that MLX supports.

``--mamba-radix-cache-strategy auto`` becomes ``no_buffer``. Stock's ``auto`` is ``extra_buffer``
for models with gated delta nets. That needs kernels of other platforms, and MLX's part of the radix
cache refuses it.
"""

from ....model.declaration import Declaration, fixes
from ..proven import HYBRIDS
from ..references import ENVIRONMENT, STATES_SINCE

_OVERRIDES = "sglang.srt.arg_groups.overrides"

PATCH = Declaration(
    *(__name__, "0.5.17 … 0.5.23"),
    only_with=("mlx",),
    proven_with=HYBRIDS,
    worth=fixes("with stock's defaults for a hybrid model, an MLX server crashes at start-up"),
    requires=("mlx.hybrid-cache",),
    anchors=STATES_SINCE,
    absent_because="before 0.5.17 hybrids on MLX have other faults",
    depends=(f"{_OVERRIDES}:_mamba_radix_cache_resolution", f"{ENVIRONMENT}:Envs.SGLANG_USE_MLX"),
    awaits=(ENVIRONMENT,),
    anytime="arguments are resolved once, before the server starts its processes",
)


@PATCH.replaces(f"{_OVERRIDES}:supports_mamba_cache_extra_buffer")
def supports_mamba_cache_extra_buffer(view, model, *, patch, stock):
    if not patch.module(ENVIRONMENT).envs.SGLANG_USE_MLX.get():
        return stock(view, model)
    patch.ran.seen = True
    return False
