"""The mla patches on a CPU, one file each, and what their checks share."""

from __future__ import annotations

from random import Random

from sglang_perf_patches.verify.mla.rig import CONTEXT


def some_lengths(random: Random, most: int, *, least: int = 1) -> list[int]:
    """Prefix lengths of `least` to `most` requests, each with 8 tokens to spare."""
    count = random.randint(least, most)
    return [random.randint(1, CONTEXT - 8) for _ in range(count)]
