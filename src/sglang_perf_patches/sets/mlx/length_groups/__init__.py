"""Short requests are not padded to the length of a long one in their batch.

A batch's buffers, its groups and attention to each of them are `mlx.kv-arena`'s. This patch marks
the contexts of decode steps, where that patch looks for it, and changes nothing else.
"""

from ....model.declaration import Declaration
from ..grouping import MARK
from ..proven import PREFILL_AND_DECODE
from ..references import BATCHED_DECODE, USERS

PATCH = Declaration(
    *(__name__, "0.5.11 … 0.5.23"),
    only_with=("mlx",),
    proven_with=PREFILL_AND_DECODE,
    anchors=(BATCHED_DECODE,),
    absent_because="MLX has no batched decode context before 0.5.11 (#22416)",
    requires=("mlx.kv-arena",),
    depends=USERS,
    anytime="without it the next step's requests share one buffer again",
)


@PATCH.replaces(BATCHED_DECODE)
def batched_decode(self, x, ctx, *, patch, stock):
    """Decode one layer; x and the result are (batch, 1, hidden)."""
    vars(ctx)[MARK] = patch
    return stock(self, x, ctx)
