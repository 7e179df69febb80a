"""Mamba2 and lightning-attention models of real dimensions in one Engine, patched and not in turn.

usage: python tests/benchmarks/mamba/hybrids.py OUT.json SHAPE [OPTION=VALUE …]

SHAPE is a name in `SHAPES`; options are fields of ServerArgs. Weights are dummies. Run it as
``turns.py``, whose switch it uses: SGLANG_PERF_PATCHES names the one patch that is on and off in
turn. It measures the time to the first token of 1, 16 and 64 requests together: of those that
continue a cached prefix where the shape says so, as in a conversation, else of new prompts. Tokens
are compared, and the bits of all states.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turns import PROBE, Turns, counted_below, ran, tokens

ROUNDS = int(os.environ.get("ROUNDS", "13"))
PREFIX = 1030
"""Tokens of a prefix, of which 1,024 come back from the cache: states are kept at such steps."""
ENDS = 100
"""New tokens after a prefix: with the rest of it too few for a further state to be kept."""

COMMON: dict[str, Any] = {
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
NEMOTRON: dict[str, Any] = {
    **COMMON,
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "vocab_size": 131072,
    "num_attention_heads": 32,
    "head_dim": 128,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "chunk_size": 128,
    "mamba_ssm_cache_dtype": "float32",
    "mlp_hidden_act": "relu2",
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 262144,
}
SHAPES: dict[str, dict[str, Any]] = {
    # NVIDIA-Nemotron-3-Nano-30B-A3B: 23 Mamba2, 23 MoE and 6 attention layers.
    "nemotron-30b-a3b": {
        **NEMOTRON,
        "hidden_size": 2688,
        "intermediate_size": 1856,
        "hybrid_override_pattern": "MEMEM*E" + "MEMEM*E" * 4 + "MEMEMEM*E" + "MEMEMEME",
        "num_key_value_heads": 2,
        "mamba_num_heads": 64,
        "mamba_head_dim": 64,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712,
        "routed_scaling_factor": 2.5,
        "n_group": 1,
        "topk_group": 1,
    },
    # Nemotron-H-8B: 24 Mamba2, 24 MLP and 4 attention layers.
    "nemotron-8b": {
        **NEMOTRON,
        "hidden_size": 4096,
        "intermediate_size": 21504,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        "num_key_value_heads": 8,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
    },
    # The sizes of a Ling mini (16B, 1.4B active) in the architecture of Ling 2.5: 16 layers of
    # lightning attention (seg_la, the default) and 4 of MLA. The router is a plain softmax, which
    # needs no kernel of FlashInfer's.
    "ling-16b-a1b": {
        **COMMON,
        "architectures": ["BailingMoeV2_5ForCausalLM"],
        "model_type": "bailing_hybrid",
        "vocab_size": 157184,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "num_hidden_layers": 20,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 256,
        "num_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 0,
        "topk_group": 0,
        "moe_intermediate_size": 512,
        "first_k_dense_replace": 1,
        "layer_group_size": 5,
        "group_norm_size": 4,
        "use_qk_norm": True,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "partial_rotary_factor": 0.5,
        "score_function": "softmax",
        "scoring_func": "softmax",
        "topk_method": "greedy",
        "moe_router_enable_expert_bias": False,
        "router_dtype": "fp32",
        "routed_scaling_factor": 2.5,
        "max_position_embeddings": 131072,
        "rope_theta": 600000.0,
        "rms_norm_eps": 1e-6,
    },
}
NEW = {"1x519": (1, 519), "16x300": (16, 300), "64x128": (64, 128), "4x2048": (4, 2048)}
OPTIONS: dict[str, Any] = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "moe_runner_backend": "triton",
    "mem_fraction_static": 0.97,
    "max_running_requests": 64,
    "max_total_tokens": 200_000,
    "cuda_graph_bs_decode": [1, 16, 64],
    "random_seed": 7,
    "log_level": "info",
}


def asked(turns: Turns, prompts: list[list[int]]) -> dict[str, Any]:
    """One token of each prompt, all sent at once."""
    began = time.perf_counter()
    replies = turns.engine.generate(
        input_ids=prompts,
        sampling_params={"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
    )
    return {
        "last": 1e3 * (time.perf_counter() - began),
        "median": 1e3 * statistics.median(each["meta_info"]["e2e_latency"] for each in replies),
        "cached": [each["meta_info"]["cached_tokens"] for each in replies],
        "tokens": [list(each["output_ids"]) for each in replies],
    }


def measured(turns: Turns, make: Any) -> dict[str, Any]:
    """Both sides in turn, each round with prompts of its own; `make` gives those of a side."""
    said: dict[str, list[dict[str, Any]]] = {"stock": [], "patched": []}
    for number in range(-2, ROUNDS):
        prompts = make()
        for side in sorted(said, reverse=bool(number % 2)):
            turns.ask(side)
            found = asked(turns, prompts[side])
            if number >= 0:  # the first ones compile what is new at this size
                said[side].append(found)
    out: dict[str, Any] = {}
    for figure in ("last", "median"):
        each = {side: [one[figure] for one in of] for side, of in said.items()}
        ratios = [new / old for old, new in zip(each["stock"], each["patched"], strict=True)]
        out[figure] = {side: quartiles(of) for side, of in each.items()}
        out[figure]["ratio"] = quartiles(ratios)
        out[figure]["turns"] = {side: [round(v, 2) for v in of] for side, of in each.items()}
    for side, of in said.items():
        out[f"cached, {side}"] = sorted({tokens for one in of for tokens in one["cached"]})
    pairs = zip(said["stock"], said["patched"], strict=True)
    same = [a == b for x, y in pairs for a, b in zip(x["tokens"], y["tokens"], strict=True)]
    out["tokens equal"] = [sum(same), len(same)]
    return out


def quartiles(values: list[float]) -> list[float]:
    """Of at least two values."""
    return [round(q, 3) for q in statistics.quantiles(values, n=4)]


def continued(turns: Turns) -> Iterator[tuple[str, Any]]:
    """Requests that continue a cached prefix, the same for both sides."""
    prefixes = turns.prompts(64, PREFIX)
    turns.ask("stock")
    for start in range(0, len(prefixes), 8):
        asked(turns, prefixes[start : start + 8])

    def make(count: int) -> dict[str, list[list[int]]]:
        ends = turns.prompts(count, ENDS)
        both = [prefix + end for prefix, end in zip(prefixes, ends, strict=False)]
        return {"stock": both, "patched": both}

    for count in (1, 16, 64):
        name = f"{count} x (1024 cached + {PREFIX - 1024 + ENDS})"
        yield name, measured(turns, functools.partial(make, count))
    yield "calls, 16 requests", profiles(turns, lambda: make(16)["stock"])


def fresh(turns: Turns) -> Iterator[tuple[str, Any]]:
    """New prompts, other ones for each side: whatever one side keeps is of no use to the other."""

    def make(count: int, length: int) -> dict[str, list[list[int]]]:
        return {side: turns.prompts(count, length) for side in ("stock", "patched")}

    for name, cell in NEW.items():
        found = measured(turns, functools.partial(make, *cell))
        del found["tokens equal"]
        yield name, found
    yield "calls, 16 requests", profiles(turns, lambda: make(16, 300)["stock"])


def profiles(turns: Turns, make: Any) -> dict[str, Any]:
    """Calls of the runtime in a prefill of each side, from a trace of four."""
    found: dict[str, Any] = {}
    for side in ("stock", "patched"):
        turns.ask(side)
        where = f"{turns.folder}/trace-{side}"
        turns.engine.start_profile(output_dir=where)
        for _ in range(4):
            asked(turns, make())
        turns.engine.stop_profile()
        found[side] = counted_below(where)
    return found


def main(out: Path, shape: str, given: list[str]) -> None:
    """Boot, measure; write `out` after each part."""
    folder = tempfile.mkdtemp()
    os.environ["TURNS_FOLDER"] = folder
    Path(folder, "model").mkdir()
    Path(folder, "model", "config.json").write_text(json.dumps(SHAPES[shape]))
    options = dict(OPTIONS)
    for word in given:
        name, _, value = word.partition("=")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    began = time.time()
    turns = Turns(options, folder)
    found: dict[str, Any] = {"shape": shape, "options": given}
    found["boot s"] = round(time.time() - began, 1)
    found["sides"] = turns.ask("said", 300)
    print("READY", json.dumps(found), flush=True)
    while os.environ.get("START_FILE") and not Path(os.environ["START_FILE"]).exists():
        time.sleep(0.05)
    part = continued if "nemotron" in shape else fresh
    try:
        for name, measurement in part(turns):
            found[name] = measurement
            found["patches"] = ran()
            out.write_text(json.dumps(found, indent=1) + "\n")
            print(name, json.dumps(measurement)[:700], flush=True)
        found["tokens and states"] = tokens(turns, ["stock", "patched"])
        out.write_text(json.dumps(found, indent=1) + "\n")
        print("TOKENS", json.dumps(found["tokens and states"]), flush=True)
    finally:
        turns.engine.shutdown()


if __name__ == "__main__":
    for _name in ("HF_HUB_OFFLINE", "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK", "DUMMY_WEIGHTS"):
        os.environ.setdefault(_name, "1")
    _folders = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parent / "switch"), str(PROBE)]
    os.environ["PYTHONPATH"] = os.pathsep.join(_folders)
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
