"""``mlx.length-groups``."""

from ....model.patch import Patch, variant
from ..proven import PREFILL_AND_DECODE
from ..references import BATCHED_DECODE, USERS

PATCH = Patch(
    id="mlx.length-groups",
    only_with=("mlx",),
    proven_with=PREFILL_AND_DECODE,
    kind="policy",
    summary="short requests are not padded to the length of a long one in their batch",
    anchors=(BATCHED_DECODE,),
    absent_because="MLX has no batched decode context before 0.5.11 (#22416)",
    requires=("mlx.kv-arena",),
    variants=(
        variant(
            *(__name__, "0.5.11 … 0.5.23"),
            targets=(BATCHED_DECODE,),
            depends=USERS,
        ),
    ),
)
