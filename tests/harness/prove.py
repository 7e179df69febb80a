"""Run the proof of patches on one release: ``python prove.py PATCH …``, its tree on PYTHONPATH.

All their checks, on the host and those of ``verify``, with inputs from hypothesis.
"""

import json
import os
import sys
from collections.abc import Callable
from random import Random
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests import proof

T = TypeVar("T")

FULL_DEPTH = 4
"""Inputs that a case draws beyond its own edges, on each of some 16 releases."""

DEPTH = int(os.environ.get("PERF_PATCHES_TESTS_DEPTH", FULL_DEPTH))
"""How many of them this run draws (see `tiers.DEPTH`)."""


def drawn(draw: Callable[[Random], T], count: int | None = None) -> list[T]:
    """Inputs whose every random choice comes from hypothesis."""
    inputs: list[T] = []

    @settings(
        max_examples=DEPTH if count is None else -(-count * DEPTH // FULL_DEPTH),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def each(random: Random) -> None:
        inputs.append(draw(random))

    each()
    return inputs


def main(patches: list[str]) -> None:
    for line in proof.run(patches, drawn):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
