"""A turn waits for its own conversation, and full attention is stock's."""

from __future__ import annotations

from sglang_perf_patches.sets.mlx.next_turn.body import COUNTS
from sglang_perf_patches.verify import Inputs
from sglang_perf_patches.verify.comparing import require
from sglang_perf_patches.verify.mlx import cases, models
from sglang_perf_patches.verify.mlx.cases import schedule
from sglang_perf_patches.verify.mlx.equivalence import FEW, same
from sglang_perf_patches.verify.mlx.next_turn import PATCH, close

OTHERS = schedule(
    """
    join a 12, decode a 3, leave a, join f 6, extend f 6, decode f 2, leave f, join x 9, decode x,
    hit b a 1 30, hit c a 11 6, hit d a 5 20, hit g f 8 9, decode bcdg
    """
)
"""Prompts that share a token, all but the last, or a first chunk with an earlier, short one."""

NEXT = schedule("hit e a 14 12, hit h f 13 9, chain ehx 3")
"""Then the next turns of the earlier ones."""


def random_episodes(inputs: Inputs) -> int:
    """Prompts with prefixes that others left, chunks, aborts, and cleared caches."""
    return sum(close(episode) for episode in inputs(cases.random_episodes)[:FEW])


def sharing(_: Inputs) -> int:
    """A turn waits for its own conversation, whatever else shares the beginning of its prompt."""
    compared = close(OTHERS)
    require(not COUNTS["continued"], f"{PATCH}, another conversation: {dict(COUNTS)}")
    compared += close((*OTHERS, *NEXT), "continued")
    require(COUNTS["continued"] == 2, f"{PATCH}: {dict(COUNTS)}")
    return compared


def beside_others(_: Inputs) -> int:
    """The same, with the patches that change the buffers too."""
    beside = ("mlx.pool-write", "mlx.kv-arena", "mlx.first-buffer")
    return close(cases.TALKING, "continued", beside=beside)


def full_attention(_: Inputs) -> int:
    """The radix cache has the last turn, and stock's code runs."""
    COUNTS.clear()
    with models.model("qwen3", "float32") as model:
        compared = sum(
            same(PATCH, model, [cases.TALKING], radix=True, sampling=sampling, ran=False)
            for sampling in (False, True)
        )
    require(not COUNTS, f"{PATCH}: {dict(COUNTS)}")
    return compared


CHECKS = {
    "random episodes": random_episodes,
    "a shared beginning": sharing,
    "beside other patches": beside_others,
    "full attention": full_attention,
}
