"""``mlx.decode-context``."""

from ....model.patch import Marker, Patch, Variant, Worth
from ..proven import ANY, WITHOUT_CACHE
from ..references import BATCHED_DECODE, CORE, USERS, WRAPPER

PATCH = Patch(
    id="mlx.decode-context",
    only_with=("mlx",),
    proven_with=dict.fromkeys((*ANY, *WITHOUT_CACHE), "tests/mlx/test_decode_context.py"),
    summary=(
        "makes the arrays of sequence lengths once per decode step (no gain, and only for one "
        "unreleased commit)"
    ),
    worth=Worth("c", "sgl-project/sglang#23470"),
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
    variants=(
        Variant(
            releases=("git-5b9fbc51dcff",),
            install=f"{__name__}.body:install",
            targets=(CORE,),
            depends=USERS,
        ),
    ),
)
