"""Boot one stock spec-v2 EAGLE Engine and measure it.

``python engine.py TAG OUT.jsonl [OPTION=VALUE …]``: a tiny target and draft with dummy weights and
simulated acceptance. Options are fields of ServerArgs; what the release does not know is dropped,
and said. ``target=mla`` takes a tiny DeepSeek with its own MTP layer instead of a Llama. Which
patches are live is chosen by SGLANG_PERF_PATCHES, as anywhere: run it under
``python -m sglang_perf_patches run``. The line of JSON is written anew after each measurement.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DEFAULTS = {
    "HF_HUB_OFFLINE": "1",
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
    "SGLANG_DISABLE_CUDNN_CHECK": "1",
    "SGLANG_SIMULATE_ACC_LEN": "2.5",
    "SGLANG_ENABLE_SPEC_V2": "1",
}
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
    "vocab_size": 32000,
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


def model(name: str, architecture: str, layers: int, **more: Any) -> str:
    """Write a model's configuration; its folder."""
    folder = Path(tempfile.gettempdir()) / "models" / name
    folder.mkdir(parents=True, exist_ok=True)
    config = {**MODEL, "architectures": [architecture], "num_hidden_layers": layers, **more}
    if "kv_lora_rank" in config:
        del config["head_dim"]  # MLA's heads have two parts
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def engine(options: dict[str, Any]) -> Any:
    """An Engine with the options that the release knows."""
    import sglang
    from sglang.srt.server_args import ServerArgs

    known = getattr(ServerArgs, "__dataclass_fields__", None) or ServerArgs.__struct_fields__
    print("dropped", [name for name in options if name not in known], flush=True)
    return sglang.Engine(**{name: value for name, value in options.items() if name in known})


def generate(server: Any, count: int, seed: int, output: int = OUTPUT) -> tuple[float, list[Any]]:
    """Seconds and outputs of so many random prompts, greedily."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(10, 31000) for _ in range(PROMPT)] for _ in range(count)]
    parameters = {"temperature": 0, "max_new_tokens": output, "ignore_eos": True}
    started = time.time()
    outputs = server.generate(input_ids=prompts, sampling_params=parameters)
    return time.time() - started, outputs


def patches(began: float) -> dict[str, list[str]]:
    """The patches that ran in a process since `began`, and those that stayed out, with why."""
    from sglang_perf_patches import record

    processes = [process for process in record.read_all() if process["started"] >= began]
    states = [state for process in processes for state in process["patches"]]
    ran = {state["id"] for state in states if state["ran"]}
    out = {
        f"{state['id']} {state['state']}: {state['reason']}"
        for state in states
        if state["state"] in {"gated", "conflict", "failed", "refused"}
    }
    return {"ran": sorted(ran), "left_out": sorted(out)}


def main(tag: str, out: str, given: list[str]) -> None:
    """Boot, time, profile; append one line of JSON to `out`."""
    options: dict[str, Any] = {
        "model_path": model("llama", "LlamaForCausalLM", 8),
        "speculative_draft_model_path": model("llama_eagle", "LlamaForCausalLMEagle", 1),
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
        options["model_path"] = model("deepseek", "DeepseekV3ForCausalLM", 8, **MLA)
        del options["speculative_draft_model_path"]
    for option in given:
        if option == "target=mla":
            continue
        name, _, value = option.partition("=")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    began = time.time()
    server = engine(options)
    found: dict[str, Any] = {"tag": tag, "options": given, "boot_s": round(time.time() - began, 1)}
    whole = hashlib.sha256()
    kept = Path(out).read_text() if Path(out).exists() else ""

    def keep() -> None:
        Path(out).write_text(kept + json.dumps(found) + "\n")

    for count in BATCHES:
        generate(server, count, 0, 16)
        times, digest = [], hashlib.sha256()
        for seed in (1, 2, 3):
            seconds, outputs = generate(server, count, seed)
            times.append(seconds)
            for output in outputs:
                digest.update(json.dumps(output["output_ids"]).encode())
        found[f"tpot_ms_bs{count}"] = round(sorted(times)[1] * 1e3 / OUTPUT, 4)
        found[f"outputs_bs{count}"] = digest.hexdigest()[:16]
        whole.update(digest.digest())
        keep()
    found["outputs"] = whole.hexdigest()[:16]
    folder = tempfile.mkdtemp(prefix="profile-")  # a boot of the same tag may have left its own
    server.start_profile(output_dir=folder)
    _, outputs = generate(server, 1, 99, 128)
    server.stop_profile()
    time.sleep(3)
    steps = outputs[0]["meta_info"].get("spec_verify_ct") or 1
    counts = dict.fromkeys(COUNTED, 0)
    for file in glob.glob(f"{folder}/**/*.gz", recursive=True):
        with gzip.open(file) as trace:
            events = json.load(trace)["traceEvents"]
        for event in events:
            for name in COUNTED:
                counts[name] += str(event.get("name", "")).startswith(name)
    found["verify_steps"] = steps
    found |= patches(began)
    found["per_step"] = {name: round(count / steps, 2) for name, count in counts.items()}
    keep()
    print("ENGINE", json.dumps(found), flush=True)
    server.shutdown()


if __name__ == "__main__":
    for _name, _value in DEFAULTS.items():
        os.environ.setdefault(_name, _value)
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
