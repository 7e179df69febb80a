"""``mlx.last-row``."""

from ....model.patch import Patch, Worth, of, variant
from ..proven import PREFILL_AND_DECODE
from ..references import RUNNER

_SHARED = {
    "targets": of(RUNNER, "prefill_start", "extend_start"),
    "depends": (
        *of(RUNNER, "_extract_logits", "_forward_lazy_token", "_select_tokens_with_logprobs"),
        f"{RUNNER}._trunk_forward",
    ),
}

PATCH = Patch(
    id="mlx.last-row",
    only_with=("mlx",),
    gain_with="-states -windows",
    proven_with=PREFILL_AND_DECODE,
    summary="prefill computes the model's head for the last position only",
    worth=Worth(
        "a",
        "on one H200, with only this patch, a prompt of 2,048 tokens takes 0.96 of stock's time",
        "tests/benchmarks/results/mlx.md",
        "prompt-2048-last-row",
    ),
    absent_because="before 0.5.11 a prefill on MLX is computed at once, not as a graph",
    variants=(
        variant(*(__name__, "0.5.11 … 0.5.17"), note="acts on every chunk of a prompt", **_SHARED),
        variant(
            *(__name__, "0.5.18 … 0.5.23"),
            note="acts on a prompt's last chunk: stock itself skips the head for the others, if "
            "it can call the model's trunk separately",
            **_SHARED,
        ),
    ),
)
