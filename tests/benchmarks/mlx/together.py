"""Prompts prefilled together and one at a time: which bits are equal, and what it gains.

    python3 tests/benchmarks/mlx/together.py [--release 0.5.23] [--only bits,times] [--shape tiny]

runs in the environment that the tests use, which the first use makes. It asks mlx-lm's Qwen3 alone,
by mlx-lm's own caches, so that nothing of sglang is between. Prompts come together in two forms:

- packed: one behind the other in one row. Each projection sees all tokens, and each prompt's
  attention its own, so no padding is computed.
- padded: a row each, with padding behind the shorter ones, which no token of a prompt attends to.

``bits`` compares the last position's logits and all K and V with those of each prompt by itself,
and prints one line of JSON for each kind of weights and form. ``times`` prints one for each number
and length of prompts: milliseconds of the host that builds, and until all first tokens are there,
by turns. One at a time means as stock does it: all graphs are built, then evaluated at once.
`results/mlx.md` says what was measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from beside_release import run

_SHAPES: dict[str, dict[str, Any]] = {
    # the served benchmark's
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
    # one of Qwen3-0.6B's 28 layers, and a part of its vocabulary
    "0.6b": {
        "vocab_size": 9_496,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 1,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
}
_SHAPES["0.6b-whole"] = {
    # for a GPU, where a layer alone says nothing of the launches of all
    **_SHAPES["0.6b"],
    "vocab_size": 151_936,
    "num_hidden_layers": 28,
}
_KINDS = (("float32", False), ("bfloat16", False), ("float16", False), ("bfloat16", True))
_LENGTHS = {
    "equal": [[16] * 4, [100] * 4, [128] * 8, [257] * 2],
    "unequal": [[9, 5], [17, 33, 100], [64, 65, 127, 128], [300, 2, 31, 200]],
}


def main() -> int:
    """Measure here if sglang's runner is here, else in the release's environment."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", default="0.5.23")
    parser.add_argument("--only", default="bits,times")
    parser.add_argument("--shape", choices=tuple(_SHAPES), default="tiny")
    parser.add_argument("--dtype", default="float32", help="for times; 4bit is bfloat16 in 4 bits")
    parser.add_argument("--tokens", default="8,32,64,128,256,512", help="of a prompt, for times")
    parser.add_argument("--numbers", default="2,4,8", help="of prompts, for times")
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args()
    return run(__file__, given.release, lambda: _measure(given))


def _measure(given: argparse.Namespace) -> None:
    if "bits" in given.only:
        _bits(given)
    if "times" in given.only:
        _times(given)


def _bits(given: argparse.Namespace) -> None:
    from sglang_perf_patches.verify.mlx import models

    for dtype, quantized in _KINDS:
        with models.model("qwen3", dtype, quantized=quantized, **_SHAPES[given.shape]) as model:
            differences: dict[str, list[str]] = {}
            for which, several in _LENGTHS.items():
                for lengths in several:
                    prompts = _prompts(lengths, model.vocabulary)
                    alone = [_alone(model.model, prompt) for prompt in prompts]
                    for form, run in (("packed", _packed), ("padded", _padded)):
                        together = run(model.model, prompts)
                        other = [
                            name
                            for name in ("logits", "kv")
                            if any(
                                _other(a[name], b[name])
                                for a, b in zip(alone, together, strict=True)
                            )
                        ]
                        differences.setdefault(f"{form}, {which}", []).append(
                            "+".join(other) or "equal"
                        )
            kind = "4 bits" if quantized else dtype
            print(json.dumps({"shape": given.shape, "kind": kind} | differences), flush=True)


def _times(given: argparse.Namespace) -> None:
    import mlx.core as mx

    from sglang_perf_patches.verify.mlx import models

    dtype = "bfloat16" if given.dtype == "4bit" else given.dtype
    shape = _SHAPES[given.shape]
    with models.model("qwen3", dtype, quantized=given.dtype == "4bit", **shape) as model:
        for tokens in map(int, given.tokens.split(",")):
            for number in map(int, given.numbers.split(",")):
                prompts = _prompts([tokens] * number, model.vocabulary)
                built: dict[str, list[float]] = {form: [] for form in _FORMS}
                taken: dict[str, list[float]] = {form: [] for form in _FORMS}
                for turn in range(given.turns + 1):
                    for form in sorted(_FORMS, reverse=bool(turn % 2)):
                        began = time.perf_counter()
                        results = _FORMS[form](model.model, prompts)
                        firsts = [mx.argmax(each["logits"], axis=-1) for each in results]
                        caught = time.perf_counter()
                        mx.eval(firsts, [each["kv"] for each in results])
                        if turn:
                            built[form].append(1e3 * (caught - began))
                            taken[form].append(1e3 * (time.perf_counter() - began))
                told: dict[str, Any] = {"shape": given.shape, "kind": given.dtype}
                told |= {"prompts": number, "tokens": tokens}
                for form in _FORMS:
                    told[f"{form}, ms"] = round(statistics.median(taken[form]), 1)
                    told[f"{form}, built, ms"] = round(statistics.median(built[form]), 1)
                for form in ("packed", "padded"):
                    ratios = [a / b for a, b in zip(taken[form], taken["alone"], strict=True)]
                    told[f"{form} : alone"] = [
                        round(value, 3) for value in statistics.quantiles(ratios, n=4)
                    ]
                print(json.dumps(told), flush=True)


def _prompts(lengths: Sequence[int], vocabulary: int) -> list[list[int]]:
    from random import Random

    chance = Random(3)
    return [[chance.randrange(vocabulary) for _ in range(length)] for length in lengths]


def _each(model: Any, prompts: list[list[int]]) -> list[dict[str, Any]]:
    return [_alone(model, prompt) for prompt in prompts]


def _alone(model: Any, prompt: list[int]) -> dict[str, Any]:
    """Unevaluated logits of the last position, and K and V of all layers."""
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache

    caches = [KVCache() for _ in model.layers]
    hidden = model.model(mx.array([prompt]), caches)
    return {"logits": _head(model, hidden[:, -1:]), "kv": _kv(caches, 0, 0, len(prompt))}


def _padded(model: Any, prompts: list[list[int]]) -> list[dict[str, Any]]:
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache

    most = max(map(len, prompts))
    caches = [KVCache() for _ in model.layers]
    rows = mx.array([prompt + [0] * (most - len(prompt)) for prompt in prompts])
    hidden = model.model(rows, caches)
    return [
        {
            "logits": _head(model, hidden[row : row + 1, len(prompt) - 1 : len(prompt)]),
            "kv": _kv(caches, row, 0, len(prompt)),
        }
        for row, prompt in enumerate(prompts)
    ]


def _packed(model: Any, prompts: list[list[int]]) -> list[dict[str, Any]]:
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache

    caches = [[KVCache() for _ in model.layers] for _ in prompts]
    layers = list(model.model.layers)
    ends = [sum(map(len, prompts[: number + 1])) for number in range(len(prompts))]
    hidden = model.model.embed_tokens(mx.array([[token for prompt in prompts for token in prompt]]))
    for number, layer in enumerate(layers):
        states = layer.input_layernorm(hidden)
        mixed = _attention(layer.self_attn, states, [each[number] for each in caches], ends)
        hidden = hidden + mixed
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    hidden = model.model.norm(hidden)
    return [
        {
            "logits": _head(model, hidden[:, end - 1 : end]),
            "kv": _kv(each, 0, 0, len(prompt)),
        }
        for end, prompt, each in zip(ends, prompts, caches, strict=True)
    ]


def _attention(inner: Any, states: Any, caches: list[Any], ends: list[int]) -> Any:
    """Attention of each prompt by itself between projections of all."""
    import mlx.core as mx

    def heads(array: Any, count: int) -> Any:
        return array.reshape(1, ends[-1], count, -1)

    queries = inner.q_norm(heads(inner.q_proj(states), inner.n_heads)).transpose(0, 2, 1, 3)
    keys = inner.k_norm(heads(inner.k_proj(states), inner.n_kv_heads)).transpose(0, 2, 1, 3)
    values = heads(inner.v_proj(states), inner.n_kv_heads).transpose(0, 2, 1, 3)
    outputs = []
    for start, end, cache in zip([0, *ends[:-1]], ends, caches, strict=True):
        all_keys, all_values = cache.update_and_fetch(
            inner.rope(keys[:, :, start:end]), values[:, :, start:end]
        )
        attended = mx.fast.scaled_dot_product_attention(
            inner.rope(queries[:, :, start:end]),
            *(all_keys, all_values),
            scale=inner.scale,
            mask="causal" if end - start > 1 else None,
        )
        outputs.append(attended.transpose(0, 2, 1, 3).reshape(1, end - start, -1))
    return inner.o_proj(mx.concatenate(outputs, axis=1))


def _head(model: Any, hidden: Any) -> Any:
    return (model.lm_head if "lm_head" in model else model.model.embed_tokens.as_linear)(hidden)


def _kv(caches: list[Any], row: int, start: int, end: int) -> list[Any]:
    return [
        array[row : row + 1, :, start:end]
        for cache in caches
        for array in (cache.keys, cache.values)
    ]


def _other(one: Any, other: Any) -> bool:
    """Whether some bit differs; of an array or a list of them."""
    import mlx.core as mx

    from sglang_perf_patches.sets.mlx.device import same_bits

    if isinstance(one, list):
        return any(_other(*both) for both in zip(one, other, strict=True))
    return not same_bits(mx, one, other)


_FORMS = {"alone": _each, "packed": _packed, "padded": _padded}

if __name__ == "__main__":
    sys.exit(main())
