"""A plugin that says what a server does with the states of a hybrid model, for the tests.

It prints ``restored`` for each layer whose state a prefill gets. With ``HYBRID_BYTES`` the states
that no running request uses take at most so many bytes. For each patch that a process lets through,
it prints ``noted: PATCH FEATURES``.
"""

import importlib
import multiprocessing
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "harness"))

import noted

STATES = "sglang.srt.hardware_backend.mlx.kv_cache.auxiliary_state"


def load() -> None:
    once = cache(lambda line: print(line, flush=True))
    noted.tell(lambda patch, features: once(f"noted: {patch} {' '.join(features)}"))
    if multiprocessing.current_process().name == "MainProcess":
        return
    states: Any = importlib.import_module(STATES)
    restore = states._restore_cache

    def says(*words: Any) -> Any:
        print("restored", flush=True)
        return restore(*words)

    states._restore_cache = says
    if "HYBRID_BYTES" in os.environ:
        body: Any = importlib.import_module("sglang_perf_patches.sets.mlx.hybrid_cache")
        body.MOST_BYTES = int(os.environ["HYBRID_BYTES"])
