"""Launch commands that people run, with the flags as sglang 0.5.23 names them.

Left out are the flags that 0.5.23 no longer has, and the address and the port.
"""

from __future__ import annotations

from typing import NamedTuple

DRAFT = "DRAFT"
"""Stands for the folder of a draft model in a command."""


class Recipe(NamedTuple):
    """A launch command; `gpu` is a key of `cli.ask.gpus.KINDS` or "MLX"; `flags` follow a model."""

    name: str
    model: str
    gpu: str
    source: str
    flags: str = ""


_COOKBOOK = "sglang cookbook, "
_ISSUE = "sgl-project/sglang#"
_INFERENCEX = "SemiAnalysis InferenceX, "
_DYNAMO = "NVIDIA Dynamo, gpt-oss-120b disaggregated, "
QWEN = "--reasoning-parser qwen3 --tool-call-parser qwen3_coder"
DRAFTS = (
    "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 "
    "--speculative-algorithm "
)
_PD = "--tp 4 --trust-remote-code --skip-tokenizer-init --disaggregation-transfer-backend nixl"

GIVEN = (
    # -- gated delta net
    Recipe("qnext-docs-tp4", "qwen3-next-80b", "H200", "sglang docs, Qwen3-Next", "--tp 4"),
    Recipe(
        *("qnext-cook-mtp", "qwen3-next-80b", "H200"),
        _COOKBOOK + "Qwen3-Next, MTP",
        f"--tp 2 {DRAFTS}EAGLE --mamba-radix-cache-strategy extra_buffer --page-size 64",
    ),
    Recipe(
        *("qcoder-next-1gpu", "qwen3-next-80b-fp8", "H200"),
        "guqiong96/Lsglang#1, Qwen3-Coder-Next",
        "--trust-remote-code --tensor-parallel-size 1 --max-running-requests 1 "
        "--enable-p2p-check --chunked-prefill-size 512 --max-total-tokens 32768 "
        "--mem-fraction-static 0.5 --tool-call-parser qwen3_coder --attention-backend triton",
    ),
    Recipe(
        *("q35-397-h200-mtp", "qwen3.5-397b", "H200"),
        _COOKBOOK + "Qwen3.5-397B, low latency",
        f"--tp 8 {QWEN} {DRAFTS}NEXTN --mem-fraction-static 0.8",
    ),
    Recipe(
        *("q35-397-h200-ht", "qwen3.5-397b", "H200"),
        _COOKBOOK + "Qwen3.5-397B, high throughput",
        f"--tp 8 {QWEN} --enable-flashinfer-allreduce-fusion --tokenizer-worker-num 6 "
        "--mem-fraction-static 0.8",
    ),
    Recipe(
        *("q35-397-fp8-ix", "qwen3.5-397b-fp8", "H200"),
        _INFERENCEX + "qwen3.5_fp8_h200.sh",
        f"--tp 8 --expert-parallel-size 8 {QWEN} --enable-flashinfer-allreduce-fusion "
        "--max-running-requests 128 --chunked-prefill-size 16384 --decode-log-interval 1 "
        "--mem-fraction-static 0.8 --cuda-graph-max-bs-decode 64 --context-length 9236 "
        "--kv-cache-dtype fp8_e4m3 --quantization fp8 --attention-backend flashinfer "
        "--stream-interval 50 --tokenizer-worker-num 6 --mamba-ssm-dtype bfloat16 "
        "--disable-radix-cache --trust-remote-code",
    ),
    Recipe(
        *("q35-35-h200-ht", "qwen3.5-35b", "H100"),
        _COOKBOOK + "Qwen3.5-35B, high throughput",
        f"{QWEN} --mem-fraction-static 0.8",
    ),
    Recipe("q35-4b-user", "qwen3.5-4b", "L40", _ISSUE + "26122"),
    # -- other models with states
    Recipe(
        *("nemo-nano-cook", "nemotron-3-nano-fp8", "B200"),
        _COOKBOOK + "Nemotron 3 Nano",
        "--trust-remote-code --max-running-requests 1024",
    ),
    Recipe(
        *("nemo-super-h200", "nemotron-3-super", "H200"),
        _COOKBOOK + "Nemotron 3 Super",
        "--trust-remote-code --tp 4 --reasoning-parser nemotron_3 --tool-call-parser qwen3_coder",
    ),
    Recipe(
        *("kimi-linear", "kimi-linear-48b", "H200"),
        _COOKBOOK + "Kimi-Linear",
        "--tp 4 --trust-remote-code",
    ),
    Recipe(
        *("falcon-h1", "falcon-h1-7b", "H200"),
        "tiiuae/Falcon-H1: README.md",
        "--dtype bfloat16 --trust-remote-code",
    ),
    # -- sliding windows
    Recipe("oss-20-1gpu", "gpt-oss-20b", "H100", "sglang cookbook on GitBook"),
    Recipe(
        *("oss-120-1gpu", "gpt-oss-120b", "H100"),
        "sglang cookbook on GitBook",
        "--mem-fraction-static 0.95",
    ),
    Recipe(
        *("oss-120-tp8", "gpt-oss-120b", "H200"),
        _COOKBOOK + "GPT-OSS",
        "--reasoning-parser gpt-oss --tool-call-parser gpt-oss --tp 8",
    ),
    Recipe(
        *("oss-120-dyn-dec", "gpt-oss-120b", "H200"),
        _DYNAMO + "decode",
        f"{_PD} --disaggregation-mode decode",
    ),
    Recipe(
        *("oss-120-dyn-pre", "gpt-oss-120b", "H200"),
        _DYNAMO + "prefill",
        f"{_PD} --disaggregation-mode prefill",
    ),
    Recipe(
        *("oss-120-triton", "gpt-oss-120b", "RTX6000"),
        _ISSUE + "9992",
        "--tp 2 --mem-fraction-static 0.8 --context-length 128000 --enable-metrics "
        "--attention-backend triton --chunked-prefill-size 8092",
    ),
    Recipe(
        *("mimo-pre", "mimo-v2-flash", "H200"),
        _ISSUE + "17634",
        "--pp-size 1 --dp-size 2 --tp-size 8 --enable-dp-attention --moe-a2a-backend deepep "
        "--deepep-mode normal --disaggregation-mode prefill --page-size 1 --trust-remote-code "
        "--moe-dense-tp-size 1 --enable-dp-lm-head --mem-fraction-static 0.7 "
        "--max-running-requests 32 --reasoning-parser qwen3 --tool-call-parser mimo "
        "--context-length 262144 --attention-backend fa3 --allow-auto-truncate "
        "--chunked-prefill-size 16384 --enable-two-batch-overlap",
    ),
    Recipe("gemma3-27b", "gemma-3-27b", "H100", _ISSUE + "4424"),
    Recipe(
        *("gemma4-31b-ht", "gemma-4-31b", "H200"),
        _COOKBOOK + "Gemma 4 31B",
        "--tp 2 --mem-fraction-static 0.85",
    ),
    Recipe(
        *("llama4-scout", "llama-4-scout", "H200"),
        "sglang docs, Llama 4",
        "--tp 8 --context-length 1000000",
    ),
    Recipe(
        *("dsv4-flash-ll", "deepseek-v4-flash", "H200"),
        _COOKBOOK + "DeepSeek-V4, low latency",
        f"--trust-remote-code --tp 4 {DRAFTS}EAGLE",
    ),
    # -- MLA
    Recipe(
        *("dsr1-h200-mtp", "deepseek-v3", "H200"),
        _INFERENCEX + "dsr1_fp8_h200_mtp.sh",
        "--trust-remote-code --tensor-parallel-size 8 --data-parallel-size 1 --ep-size 1 "
        "--disable-radix-cache --max-running-requests 256 --cuda-graph-max-bs-decode 256 "
        "--chunked-prefill-size 32768 --max-prefill-tokens 32768 --mem-fraction-static 0.82 "
        f"--attention-backend flashinfer --stream-interval 10 --decode-log-interval 1 {DRAFTS}"
        "EAGLE",
    ),
    Recipe(
        *("dsv32-cook-mtp", "deepseek-v3.2", "H200"),
        _COOKBOOK + "DeepSeek-V3.2",
        f"--tp 8 --dp 8 --enable-dp-attention --ep 8 {DRAFTS}EAGLE "
        "--tool-call-parser deepseekv32 --reasoning-parser deepseek-v3",
    ),
    Recipe(
        *("dsr1-lws-prefill", "deepseek-v3", "H100"),
        "sglang docs, LeaderWorkerSet",
        "--chunked-prefill-size 524288 --max-prefill-tokens 32768 --page-size 64 "
        "--ep-dispatch-algorithm dynamic --eplb-algorithm deepseek --enable-dp-lm-head "
        "--enable-dp-attention --dp-size 16 --tp-size 16 --nnodes 2 --node-rank 0 "
        "--dist-init-addr 10.0.0.2:30000 --disable-radix-cache --moe-a2a-backend deepep "
        "--disaggregation-mode prefill --mem-fraction-static 0.7 --context-length 32768 "
        "--trust-remote-code",
    ),
    Recipe(
        *("glm47-flash-e3", "glm-4.7-flash", "H100"),
        "SafeAILab/EAGLE#330",
        f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {DRAFT} "
        "--speculative-num-steps 3 --speculative-num-draft-tokens 6 --speculative-eagle-topk 4 "
        "--tp 1 --trust-remote-code",
    ),
    Recipe(
        *("kimi-k2.5-e3", "kimi-k2.5", "H200"),
        _COOKBOOK + "Kimi-K2.5, all features",
        f"--tp 8 --reasoning-parser kimi_k2 --tool-call-parser kimi_k2 {DRAFTS}EAGLE3 "
        f"--speculative-draft-model-path {DRAFT} --trust-remote-code",
    ),
    # -- MLX
    Recipe("mlx-llama-mac", "llama3-8b-4bit", "MLX", _ISSUE + "29679", "--disable-cuda-graph"),
    Recipe(
        *("mlx-qwen-mac", "qwen3-0.6b", "MLX"),
        _ISSUE + "20342",
        "--trust-remote-code --disable-radix-cache --disable-cuda-graph --tp-size 1",
    ),
)
