"""Stock's own choices for captured prefills, by turns between Engines on one GPU.

    python tests/benchmarks/prefill.py OUT.json PLAN.json

A plan is a list of boots: ``{"name", "group", "shape", "options": ["OPTION=VALUE", …], "layers",
"host", "patches"}``. `shape` is a name in `SHAPES`, `layers` cuts it, options are fields of
ServerArgs; weights are dummies and all else is the release's default. `host` asks for the host's
functions too, `patches` is a selection for a patched side; without it no patch is involved.
All boot at once. Then the Engines of a group take turns, while the processes of all others are
stopped: the time to the first token of new prompts, and for how much of it the GPU works. OUT.json
is rewritten after each part. CELLS in the environment names others than the four sizes, "3x300".

Run it with the release and its packages on PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

BOOT_S = float(os.environ.get("BOOT_S", "240"))
LIMIT_S = float(os.environ.get("LIMIT_S", "480"))
"""Of all of it: what is not done then is left out."""
ROUNDS = int(os.environ.get("ROUNDS", "13"))
CELLS: dict[str, tuple[int, int]] = {
    name: (int(name.split("x")[0]), int(name.split("x")[1]))
    for name in os.environ.get("CELLS", "1x130 1x519 8x512 1x4000").split()
}

COMMON: dict[str, Any] = {
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
}
GDN: dict[str, Any] = {
    **COMMON,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "full_attention_interval": 4,
}
SHAPES: dict[str, dict[str, Any]] = {
    # Qwen3.5-35B-A3B's dimensions in Qwen3-Next's architecture.
    "qwen35": {
        **GDN,
        "vocab_size": 151936,
        "intermediate_size": 5120,
        "num_hidden_layers": 40,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 10,
    },
    # The small model of tests/benchmarks/mamba.
    "gdn24": {
        **GDN,
        "vocab_size": 32000,
        "intermediate_size": 2048,
        "num_hidden_layers": 24,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 6,
    },
    # gpt-oss-20b's, in bfloat16.
    "gptoss": {
        **COMMON,
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "attention_bias": True,
        "swiglu_limit": 7.0,
        "initial_context_length": 4096,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "router_aux_loss_coef": 0.9,
    },
    # DeepSeek-V2-Lite's.
    "v2lite": {
        **COMMON,
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "vocab_size": 102400,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "n_shared_experts": 2,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "routed_scaling_factor": 1.0,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
        "topk_method": "greedy",
        "n_group": 1,
        "topk_group": 1,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": False,
        "scoring_func": "softmax",
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
    },
    # Gemma-3-12B's text model.
    "gemma": {
        **COMMON,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": 262208,
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 1024,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 8,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
}
OPTIONS: dict[str, Any] = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "grammar_backend": "none",
    "sampling_backend": "pytorch",
    "random_seed": 1,
    "log_level": "info",
}


class Boot:
    """An Engine in a process of its own."""

    def __init__(self, plan: dict[str, Any], folder: Path) -> None:
        """Start to boot."""
        self.plan = plan
        self.name: str = plan["name"]
        self.log = folder / f"{self.name}.log"
        self._file = folder / f"{self.name}.replies"
        self._file.touch()
        self._read = self._file.open()
        self.found: dict[str, Any] = {**plan, "ms": {}, "busy ms": {}}
        self._look = 0.0
        words = [sys.executable, __file__, "seat", str(self._file), json.dumps(plan)]
        if plan.get("patches"):
            words = [sys.executable, "-m", "sglang_perf_patches", "run", *words]
        self._process = subprocess.Popen(
            words,
            env=os.environ | {"SGLANG_PERF_PATCHES": plan.get("patches") or "none"},
            stdin=subprocess.PIPE,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ask(self, *words: Any, seconds: float = 60) -> Any:
        """Have it do something; None if it does not in time, or not at all."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(words) + "\n").encode())
            self._process.stdin.flush()
        except OSError:
            return None
        return self.answer(seconds)

    def answer(self, seconds: float) -> Any:
        """What it says next; None if it says nothing in time, has ended or failed."""
        until = time.time() + seconds
        line = ""
        while time.time() < until:
            line += self._read.readline()
            if line.endswith("\n"):
                said = json.loads(line)
                if isinstance(said, dict) and "error" in said:
                    self.found["error"] = said["error"]
                    return None
                return said
            if self._process.poll() is not None or (not line and self._died()):
                break
            time.sleep(0.002)
        return None

    def _died(self) -> bool:
        """Whether its scheduler ended while it booted: the Engine would wait for it."""
        if "boot_s" in self.found or time.time() < self._look:
            return False
        self._look = time.time() + 2
        text = self.log.read_text(errors="replace")
        return bool(re.search(r"Scheduler hit an exception|^Process \S+:$", text, re.MULTILINE))

    def said(self) -> dict[str, Any]:
        """What its log says of memory, graphs and failures."""
        text = self.log.read_text(errors="replace")
        kept = r"[^\n]*(?:[Cc]apture|CUDA graph|avail mem|full|breakable)[^\n]*"
        errors = r"[^\n]*(?:Error|Exception|assert|refus|not support)[^\n]*"
        return {
            "log": [line[-260:] for line in re.findall(kept, text) if "%|" not in line][:40],
            "errors": [line[-400:] for line in re.findall(errors, text)][:12],
            "tail": text[-1500:] if "boot_s" not in self.found else "",
        }

    def rest(self, on: bool) -> None:
        """Stop all its processes, or let them continue: a scheduler that idles is never still."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGSTOP if on else signal.SIGCONT)

    def kill(self) -> None:
        """End it, with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def main(out: Path, plan: list[dict[str, Any]]) -> None:
    """Boot, take turns; write `out` after each part."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no Engine stays behind
    began = time.time()
    folder = out.parent / f"{out.stem}-logs"
    folder.mkdir(parents=True, exist_ok=True)
    boots = [Boot(each, folder) for each in plan]
    result: dict[str, Any] = {"boots": {}, "groups": {}}

    def write() -> None:
        result["boots"] = {boot.name: boot.found for boot in boots}
        out.write_text(json.dumps(result, indent=1) + "\n")

    try:
        until = began + BOOT_S
        up: list[Boot] = []
        for boot in boots:
            said = boot.answer(max(1.0, until - time.time()))
            boot.found |= said or {}
            boot.found["said"] = boot.said()
            print(boot.name, json.dumps(said), boot.found.get("error", "")[-300:], flush=True)
            if said:
                up.append(boot)
            else:
                boot.kill()
        write()
        for boot in up:
            boot.rest(True)
        for group in dict.fromkeys(boot.plan["group"] for boot in up):
            members = [boot for boot in up if boot.plan["group"] == group]
            for name, cell in CELLS.items():
                if time.time() - began < LIMIT_S:
                    result["groups"].setdefault(group, {})[name] = in_turn(members, name, cell)
                    print(group, name, json.dumps(result["groups"][group][name]), flush=True)
                    write()
            for boot in members if time.time() - began < LIMIT_S else []:
                boot.rest(False)
                for name, cell in CELLS.items():
                    boot.found["busy ms"][name] = boot.ask("busy", *cell)
                if boot.plan.get("host"):
                    boot.found["host"] = boot.ask("host", 130)
                boot.rest(True)
                print(group, boot.name, json.dumps(boot.found["busy ms"]), flush=True)
                write()
    finally:
        for boot in boots:
            boot.kill()


def in_turn(members: list[Boot], name: str, cell: tuple[int, int]) -> dict[str, Any]:
    """Medians and quartiles of each, and the ratio to the first one's in the same round."""
    taken: dict[str, list[float]] = {boot.name: [] for boot in members}
    for number in range(ROUNDS):
        for boot in members if number % 2 else members[::-1]:
            boot.rest(False)
            if number < 2:
                boot.ask("time", *cell, 9000 + number)
            ms = boot.ask("time", *cell, number)
            boot.rest(True)
            taken[boot.name].append(ms or float("nan"))
    first = taken[members[0].name]
    out = {}
    for boot in members:
        each = taken[boot.name]
        ratios = [new / old for old, new in zip(first, each, strict=True)]
        boot.found["ms"][name] = [round(ms, 2) for ms in each]
        out[boot.name] = {"ms": quartiles(each), "ratio": quartiles(ratios)}
    return out


def quartiles(values: list[float]) -> list[float]:
    """Of at least two values."""
    return [round(q, 3) for q in statistics.quantiles(values, n=4)]


def seat(replies: str, plan: dict[str, Any]) -> None:
    """Boot one Engine, then answer until told to end."""
    with open(replies, "w") as out:

        def say(found: Any) -> None:
            out.write(json.dumps(found) + "\n")
            out.flush()

        began = time.time()
        try:
            server = booted(plan)
        except BaseException:
            say({"error": traceback.format_exc()[-2000:]})
            raise
        boot_s = round(time.time() - began, 1)
        for count, length in CELLS.values():
            asked(server, count, length, 8000)
        say({"boot_s": boot_s, "GPU MiB of the process": memory()})
        does: dict[str, Callable[..., Any]] = {"time": asked, "busy": busy, "host": host}
        for line in sys.stdin:
            what, *details = json.loads(line)
            try:
                say(does[what](server, *details))
            except Exception:
                say({"error": traceback.format_exc()[-2000:]})


def booted(plan: dict[str, Any]) -> Any:
    """An Engine of the plan's shape and options."""
    import sglang

    config = dict(SHAPES[plan["shape"]])
    if plan.get("layers"):
        config["num_hidden_layers"] = plan["layers"]
        if "layer_types" in config:
            config["layer_types"] = config["layer_types"][: plan["layers"]]
    folder = tempfile.mkdtemp()
    Path(folder, "config.json").write_text(json.dumps(config))
    options = dict(OPTIONS)
    for option in plan["options"]:
        name, _, value = option.partition("=")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return sglang.Engine(model_path=folder, **options)


def asked(server: Any, count: int, length: int, seed: int) -> float:
    """Milliseconds until each of so many new prompts has its first token."""
    draw = random.Random(f"{count} {length} {seed} {time.time()}")
    prompts = [[draw.randrange(10, 30000) for _ in range(length)] for _ in range(count)]
    began = time.perf_counter()
    parameters = {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
    server.generate(input_ids=prompts, sampling_params=parameters)
    return 1e3 * (time.perf_counter() - began)


def memory() -> int:
    """MiB that the scheduler's process holds on the GPU; 0 where nvidia-smi does not say."""
    command = "nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits"
    told = subprocess.run(command.split(), capture_output=True, text=True, check=False).stdout
    group = os.getpgid(0)
    total = 0
    for line in told.splitlines():
        pid, _, used = line.partition(",")
        try:
            total += int(used) if os.getpgid(int(pid)) == group else 0
        except (ValueError, ProcessLookupError):
            continue
    return total


def trace(server: Any, count: int, length: int, times: int, **options: Any) -> list[Any]:
    """The events of a profile of so many prefills."""
    folder = tempfile.mkdtemp()
    server.start_profile(output_dir=folder, **options)
    for number in range(times):
        asked(server, count, length, 700 + number)
    server.stop_profile()
    for _ in range(60):
        time.sleep(0.25)
        if glob.glob(f"{folder}/**/*.gz", recursive=True):
            break
    time.sleep(1.5)
    events: list[Any] = []
    for name in glob.glob(f"{folder}/**/*.gz", recursive=True):
        with gzip.open(name) as file:
            events += json.load(file)["traceEvents"]
    return events


def busy(server: Any, count: int, length: int) -> float:
    """Milliseconds of a prefill in which kernels, copies or memsets run on the GPU."""
    work = {"kernel", "gpu_memcpy", "gpu_memset"}
    events = trace(server, count, length, 3, activities=["GPU"])
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in work)
    total = end = 0.0
    for start, stop in spans:
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return round(total / 3e3, 2)


def host(server: Any, length: int) -> list[tuple[str, float, float]]:
    """Inclusive milliseconds and calls of the host's functions in one prefill of one prompt."""
    events = trace(server, 1, length, 4, activities=["CPU", "GPU"], with_stack=True)
    total: dict[str, list[float]] = {}
    for event in events:
        kinds = {"python_function", "cuda_runtime", "cuda_driver"}
        if event.get("ph") == "X" and event.get("cat") in kinds:
            each = total.setdefault(event["name"][-100:], [0, 0])
            each[0] += event["dur"]
            each[1] += 1
    most = sorted(total.items(), key=lambda item: -item[1][0])[:120]
    return [(name, round(us / 4e3, 2), calls / 4) for name, (us, calls) in most]


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if sys.argv[1] == "seat":
        seat(sys.argv[2], json.loads(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
