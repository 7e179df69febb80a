"""What drawing a token costs in stock's MLX backend, and taking the likeliest; prints JSON lines.

    python3 tests/benchmarks/mlx/sampling_cost.py

in an environment with sglang 0.5.19 or later and mlx (the tests' own will do), or on a machine with
a GPU. The vocabulary has 151,936 tokens. For each batch and each kind of request it gives
milliseconds of stock's ``sample_tokens``, of the sort in it by itself, and of ``argpartition`` in
its place. It also times the arrays by which a grammar or a logit bias reaches MLX through PyTorch
and NumPy. `results/mlx.md` says what was measured.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

_VOCABULARY = 151_936
_KINDS = {
    "nothing filtered": {"top_k": 1 << 30, "top_p": 1.0},
    "top_k 20": {"top_k": 20, "top_p": 0.95},
    "top_p alone": {"top_k": 1 << 30, "top_p": 0.95},
}


def main() -> None:
    """Measure."""
    import mlx_lm  # noqa: F401 -- before the stand-in for PyTorch, which transformers would take

    from tests.proof import standalone

    standalone.lend()
    from sglang.srt.hardware_backend.mlx import sampling

    for batch in (1, 16):
        logits = 4 * mx.random.normal((batch, _VOCABULARY))
        mx.eval(logits)
        figures: dict[str, Any] = {"batch": batch, "device": str(mx.default_device())}
        figures["argmax"] = _ms(lambda logits=logits: mx.argmax(logits, axis=-1))
        for name, kind in _KINDS.items():
            one = sampling.MlxSamplingParams(temperature=0.8, min_p=0.0, seed=None, **kind)
            figures[name] = _ms(
                lambda logits=logits, batch=batch, one=one: sampling.sample_tokens(
                    logits, [one] * batch, [7] * batch, mx.random.key(1)
                )
            )
        figures["the sort"] = _ms(lambda logits=logits: mx.argsort(-logits, axis=-1)[:, :20])
        figures["argpartition"] = _ms(
            lambda logits=logits: mx.argpartition(-logits, kth=20, axis=-1)[:, :20]
        )
        figures["a grammar's rows"] = _ms(
            lambda batch=batch: mx.array(np.zeros((batch, _VOCABULARY), np.float32))
        )
        print(json.dumps(figures), flush=True)


def _ms(make: Callable[[], mx.array]) -> float:
    times = []
    for _ in range(12):
        began = time.perf_counter()
        mx.eval(make())
        times.append(1e3 * (time.perf_counter() - began))
    return round(statistics.median(times[2:]), 2)


if __name__ == "__main__":
    main()
