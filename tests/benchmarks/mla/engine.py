"""Boot one stock spec-v2 EAGLE Engine and measure it, or keep its tokens.

``python engine.py TAG OUT.jsonl [OPTION=VALUE …]``: a tiny target and draft with dummy weights.
Acceptance is simulated, which makes every token the same, for times and calls per verify step. With
``acceptance=real`` drafts are verified as always, and the tokens are compared. With 32 words in the
vocabulary some drafts are accepted by chance.

Options are fields of ServerArgs; the script drops what the release does not know, and says so.
``target=mla`` takes a tiny DeepSeek with its own MTP layer instead of a Llama. ``target=8b`` takes
one of Llama-3.1-8B's shape, with its vocabulary, and ``target=v2lite`` one of DeepSeek-V2-Lite's,
with an MTP layer of its own. SGLANG_PERF_PATCHES chooses which patches are live, as anywhere: run
it under ``python -m sglang_perf_patches run``. It rewrites the line of JSON after each measurement.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DEFAULTS = {
    "HF_HUB_OFFLINE": "1",
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
    "SGLANG_DISABLE_CUDNN_CHECK": "1",
    "SGLANG_ENABLE_SPEC_V2": "1",
    "DUMMY_WEIGHTS": "1",
}
PROBE = Path(__file__).resolve().parents[2] / "harness" / "probe"
WORDS = {"simulated": 32000, "real": 32}
REAL_WORDS = {"target=8b": 128256, "target=v2lite": 102400}
"""Targets of real dimensions, which keep their vocabulary."""

RENAMED = (
    ("cuda_graph_max_bs", "cuda_graph_max_bs_decode"),
    ("cuda_graph_bs", "cuda_graph_bs_decode"),
    ("disable_piecewise_cuda_graph", "disable_prefill_cuda_graph"),
)
COUNTED = (
    "Memcpy DtoH",
    "Memset",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpyAsync",
    "cudaLaunchKernel",
    "cuLaunchKernelEx",
    "cudaGraphLaunch",
)
BATCHES = (1, 16, 64)
PROMPT, OUTPUT = 1024, 256
MODEL = {
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "model_type": "llama",
}
LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
MLA = {
    "model_type": "deepseek_v3",
    "num_key_value_heads": 16,
    "moe_intermediate_size": 512,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rope_scaling": None,
    "attention_bias": False,
    "num_nextn_predict_layers": 1,
}
V2_LITE = {
    **MLA,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "q_lora_rank": None,
    "max_position_embeddings": 163840,
}


def model(name: str, architecture: str, layers: int, **more: Any) -> str:
    """Write a model's configuration; its folder."""
    folder = Path(tempfile.gettempdir()) / "models" / name
    folder.mkdir(parents=True, exist_ok=True)
    config = {**MODEL, "architectures": [architecture], "num_hidden_layers": layers, **more}
    if "kv_lora_rank" in config:
        del config["head_dim"]  # MLA's heads have two parts
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def vocabulary(given: list[str], acceptance: str = "real") -> int:
    """Words from which the prompts of an Engine with these options are drawn."""
    real = (REAL_WORDS[option] for option in given if option in REAL_WORDS)
    return next(real, WORDS[acceptance])


def engine(options: dict[str, Any]) -> Any:
    """An Engine with the options that the release knows."""
    import sglang
    from sglang.srt.server_args import ServerArgs

    known = getattr(ServerArgs, "__dataclass_fields__", None) or ServerArgs.__struct_fields__
    for older, newer in RENAMED:
        if older in options and older not in known and newer in known:
            options[newer] = options.pop(older)
    print("dropped", [name for name in options if name not in known], flush=True)
    return sglang.Engine(**{name: value for name, value in options.items() if name in known})


def generate(
    server: Any, words: int, count: int, seed: int, output: int = OUTPUT, prompt: int = PROMPT
) -> tuple[float, list[Any]]:
    """Seconds and outputs of so many random prompts, greedily."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(3, words) for _ in range(prompt)] for _ in range(count)]
    parameters = {"temperature": 0, "max_new_tokens": output, "ignore_eos": True}
    started = time.time()
    outputs = server.generate(input_ids=prompts, sampling_params=parameters)
    return time.time() - started, outputs


def patches() -> dict[str, list[str]]:
    """The patches that ran in a process of this server, and those that stayed out, with why."""
    from sglang_perf_patches.seen import records as record

    processes = [each for each in record.read_all() if each["server"] == os.getpid()]
    states = [state for process in processes for state in process["patches"]]
    ran = {state["id"] for state in states if state["ran"]}
    out = {
        f"{state['id']} {state['state']}: {state['reason']}"
        for state in states
        if state["state"] in {"gated", "conflict", "failed", "refused"}
    }
    return {"ran": sorted(ran), "left_out": sorted(out)}


def main(tag: str, out: str, given: list[str]) -> None:
    """Boot, measure; append one line of JSON to `out`."""
    acceptance = "real" if "acceptance=real" in given else "simulated"
    words = vocabulary(given, acceptance)
    if acceptance == "simulated":
        os.environ["SGLANG_SIMULATE_ACC_LEN"] = "2.5"
    began = time.time()
    server = engine(arguments(given, words))
    found: dict[str, Any] = {"tag": tag, "options": given, "acceptance": acceptance}
    found["boot_s"] = round(time.time() - began, 1)
    kept = Path(out).read_text() if Path(out).exists() else ""
    measurements = said(server, words) if acceptance == "real" else timed(server, words)
    for measured in measurements:
        found |= measured | patches()
        Path(out).write_text(kept + json.dumps(found) + "\n")
    print("ENGINE", json.dumps(found), flush=True)
    server.shutdown()


def arguments(given: list[str], words: int) -> dict[str, Any]:
    """What the Engine is booted with: the given options override those of every boot."""
    small = {"vocab_size": words}
    options: dict[str, Any] = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "attention_backend": "triton",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "mem_fraction_static": 0.6,
        "cuda_graph_max_bs": 64,
        "max_running_requests": 64,
        "context_length": 131072,
        "speculative_algorithm": "EAGLE",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
        "random_seed": 1,
        "log_level": "info",
        "disable_piecewise_cuda_graph": True,
    }
    if "target=mla" in given:
        options["model_path"] = model("deepseek", "DeepseekV3ForCausalLM", 8, **small, **MLA)
    elif "target=8b" in given:
        shape = {**LLAMA_8B, "vocab_size": REAL_WORDS["target=8b"]}
        options["model_path"] = model("llama-8b", "LlamaForCausalLM", 32, **shape)
        draft = model("llama-8b-eagle", "LlamaForCausalLMEagle", 1, **shape)
        options["speculative_draft_model_path"] = draft
    elif "target=v2lite" in given:
        shape = {**V2_LITE, "vocab_size": REAL_WORDS["target=v2lite"]}
        options["model_path"] = model("v2-lite", "DeepseekV3ForCausalLM", 27, **shape)
    else:
        options["model_path"] = model("llama", "LlamaForCausalLM", 8, **small)
        draft = model("llama_eagle", "LlamaForCausalLMEagle", 1, **small)
        options["speculative_draft_model_path"] = draft
    for option in given:
        name, _, value = option.partition("=")
        if name in {"target", "acceptance"}:
            continue
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def timed(server: Any, words: int) -> Iterator[dict[str, Any]]:
    """Milliseconds per token at each batch size, then the calls of a verify step."""
    for count in BATCHES:
        generate(server, words, count, 0, 16)
        times = sorted(generate(server, words, count, seed)[0] for seed in (1, 2, 3))
        yield {f"tpot_ms_bs{count}": round(times[1] * 1e3 / OUTPUT, 4)}
    steps, events = profiled(server, words)
    counts = dict.fromkeys(COUNTED, 0)
    for event in events:
        for name in COUNTED:
            counts[name] += str(event.get("name", "")).startswith(name)
    per_step = {name: round(count / steps, 2) for name, count in counts.items()}
    yield {"verify_steps": steps, "per_step": per_step}


def profiled(server: Any, words: int, kept: Path | None = None) -> tuple[int, list[dict[str, Any]]]:
    """Of one request alone: its verify steps, and the events of their profile, copied to `kept`."""
    folder = tempfile.mkdtemp(prefix="profile-")  # a boot of the same tag may have left its own
    server.start_profile(output_dir=folder)
    _, outputs = generate(server, words, 1, 99, 128)
    server.stop_profile()
    time.sleep(3)
    events: list[dict[str, Any]] = []
    for file in Path(folder).rglob("*.gz"):
        if kept:
            kept.write_bytes(file.read_bytes())
        with gzip.open(file) as trace:
            events += json.load(trace)["traceEvents"]
    return outputs[0]["meta_info"].get("spec_verify_ct") or 1, events


def said(server: Any, words: int) -> Iterator[dict[str, Any]]:
    """A hash of the tokens at each batch size, how many differ, and tokens per verify step."""
    for count in BATCHES:
        digest, seen, steps = hashlib.sha256(), [], 0
        for seed in range(16 if count == 1 else 2):
            for output in generate(server, words, count, seed)[1]:
                digest.update(json.dumps(output["output_ids"]).encode())
                seen += output["output_ids"]
                steps += output["meta_info"].get("spec_verify_ct") or 0
        yield {
            f"tokens_bs{count}": digest.hexdigest()[:16],
            f"different_bs{count}": len(set(seen)),
            f"tokens_per_step_bs{count}": round(len(seen) / max(1, steps), 3),
        }


if __name__ == "__main__":
    for _name, _value in DEFAULTS.items():
        os.environ.setdefault(_name, _value)
    # The server's processes find the larger weights there; what `run` put first stays first.
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(PROBE)])
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
