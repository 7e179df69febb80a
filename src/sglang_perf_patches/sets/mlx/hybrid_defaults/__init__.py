"""``mlx.hybrid-defaults``."""

from ....model.patch import Patch, Worth, variant
from ..proven import HYBRIDS
from ..references import ENVIRONMENT, STATES_SINCE

SUPPORTS = "sglang.srt.arg_groups.overrides:supports_mamba_cache_extra_buffer"

PATCH = Patch(
    id="mlx.hybrid-defaults",
    only_with=("mlx",),
    proven_with=HYBRIDS,
    summary="gives hybrid models on MLX default arguments that MLX supports",
    worth=Worth("b", "with stock's defaults for a hybrid model, an MLX server crashes at start-up"),
    requires=("mlx.hybrid-cache",),
    anchors=STATES_SINCE,
    absent_because="before 0.5.17 hybrids on MLX have other faults",
    variants=(
        variant(
            *(__name__, "0.5.17 … 0.5.23"),
            targets=(SUPPORTS,),
            depends=("sglang.srt.arg_groups.overrides:_mamba_radix_cache_resolution",),
            awaits=(ENVIRONMENT,),
        ),
    ),
)
