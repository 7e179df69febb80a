"""Further launch commands, each with the public repository and the file that it was found in.

As in `commands`, the flags have the names that sglang 0.5.23 gives them. Where a script reads a
value from its environment, the command has the one of the repository's own matrix, in brackets.
"""

from __future__ import annotations

from .commands import DRAFT, DRAFTS, QWEN, Recipe

_COOKBOOK = "sgl-project/sgl-cookbook: "
_DOCS = _COOKBOOK + "docs/autoregressive/"
_SGLANG = "sgl-project/sglang: docs_new/"
_INFERENCEX = "SemiAnalysisAI/InferenceX: benchmarks/"
_FIXED = _INFERENCEX + "single_node/fixed_seq_len/"
_SLURM = _INFERENCEX + "multi_node/srt-slurm-recipes/sglang/"

FURTHER = (
    # -- gated delta net
    Recipe(
        *("q36-35-fp8-mtp", "qwen3.6-35b-fp8", "H200"),
        _SGLANG + "cookbook/autoregressive/Qwen/Qwen3.6.mdx",
        f"{QWEN} {DRAFTS}EAGLE --mem-fraction-static 0.8",
    ),
    Recipe(
        *("qcoder-next-tp2", "qwen3-next-80b", "H200"),
        _DOCS + "Qwen/Qwen3-Coder-Next.md",
        "--tp 2 --tool-call-parser qwen3_coder",
    ),
    Recipe(
        *("q35-397-fp8-h100-mtp", "qwen3.5-397b-fp8", "H100"),
        _FIXED + "qwen3.5_fp8_h100_mtp.sh (tp 8, ep 8, 32 at once, 1k1k)",
        f"--tp 8 --expert-parallel-size 8 {QWEN} --enable-flashinfer-allreduce-fusion "
        "--max-running-requests 64 --chunked-prefill-size 8192 --decode-log-interval 1 "
        "--mem-fraction-static 0.75 --cuda-graph-max-bs-decode 32 --context-length 2068 "
        "--kv-cache-dtype fp8_e4m3 --quantization fp8 --attention-backend flashinfer "
        "--stream-interval 50 --tokenizer-worker-num 6 --mamba-ssm-dtype bfloat16 "
        f"--disable-radix-cache --trust-remote-code {DRAFTS}EAGLE",
    ),
    Recipe(
        *("q35-397-fp8-b200", "qwen3.5-397b-fp8", "B200"),
        _FIXED + "qwen3.5_fp8_b200.sh (tp 4, 256 at once, 1k1k)",
        "--trust-remote-code --tensor-parallel-size 4 --data-parallel-size 1 "
        "--expert-parallel-size 1 --enable-symm-mem --disable-radix-cache --quantization fp8 "
        "--kv-cache-dtype fp8_e4m3 --mamba-ssm-dtype bfloat16 --attention-backend trtllm_mha "
        "--moe-runner-backend flashinfer_trtllm --cuda-graph-max-bs-decode 256 "
        "--max-prefill-tokens 16384 --chunked-prefill-size 16384 --mem-fraction-static 0.8 "
        "--stream-interval 50 --scheduler-recv-interval 30 --tokenizer-worker-num 6 "
        "--context-length 2068",
    ),
    Recipe(
        *("q35-397-fp4-rtx", "qwen3.5-397b-fp4", "RTX6000"),
        _FIXED + "qwen3.5_fp4_rtx6000pro_sglang.sh (tp 4, ep 4, 64 at once, 8k1k)",
        f"--trust-remote-code --tensor-parallel-size 4 --data-parallel-size 1 --ep-size 4 {QWEN} "
        "--quantization modelopt_fp4 --fp4-gemm-backend flashinfer_cutlass --moe-runner-backend "
        "flashinfer_cutlass --attention-backend flashinfer --kv-cache-dtype fp8_e4m3 "
        "--mamba-ssm-dtype bfloat16 --mamba-radix-cache-strategy no_buffer "
        "--disable-custom-all-reduce --disable-radix-cache --mem-fraction-static 0.7 "
        "--chunked-prefill-size 16384 --max-prefill-tokens 16384 --context-length 9236 "
        "--cuda-graph-max-bs-decode 64 --max-running-requests 128 --scheduler-recv-interval 30 "
        "--stream-interval 20",
    ),
    Recipe(
        *("q35-397-fp4-b300-mtp", "qwen3.5-397b-fp4", "B300"),
        _FIXED + "qwen3.5_fp4_b300_mtp.sh (tp 2, ep 2, 128 at once, 1k1k)",
        f"--trust-remote-code --tensor-parallel-size 2 --data-parallel-size 1 --ep-size 2 {QWEN} "
        "--mamba-radix-cache-strategy no_buffer --quantization modelopt_fp4 --fp4-gemm-backend "
        "flashinfer_cutlass --kv-cache-dtype fp8_e4m3 --mamba-ssm-dtype bfloat16 "
        "--cuda-graph-max-bs-decode 128 --max-running-requests 128 --mem-fraction-static 0.8 "
        "--chunked-prefill-size 32768 --max-prefill-tokens 32768 --context-length 2068 "
        "--disable-radix-cache --attention-backend trtllm_mha --mm-attention-backend triton_attn "
        "--moe-runner-backend flashinfer_trtllm --scheduler-recv-interval 30 "
        f"--tokenizer-worker-num 6 --stream-interval 30 {DRAFTS}EAGLE",
    ),
    # -- the same models in servers that need the graph less
    Recipe(
        *("q35-397-gb200-decode", "qwen3.5-397b-fp8", "GB200"),
        _SLURM + "qwen3.5/gb200-fp8/8k1k/1p1d-tp4-tp4.yaml, decode",
        "--quantization fp8 --kv-cache-dtype fp8_e4m3 --trust-remote-code --attention-backend "
        "trtllm_mha --tensor-parallel-size 4 --mamba-ssm-dtype bfloat16 --moe-runner-backend "
        "flashinfer_trtllm --disable-radix-cache --max-running-requests 1024 "
        "--mem-fraction-static 0.8 --chunked-prefill-size 16384 --max-prefill-tokens 16384 "
        "--context-length 16384 --cuda-graph-max-bs-decode 1024 --decode-log-interval 1 "
        "--stream-interval 50 --disaggregation-mode decode",
    ),
    Recipe(*("q36-35-mac", "qwen3.6-35b-4bit", "MLX"), "sgl-project/sglang#29490"),
    # -- other models with states
    Recipe(
        *("ring-2.5", "ring-2.5-1t", "H200"),
        _DOCS + "InclusionAI/Ring-2.5-1T.md",
        "--tp-size 8 --trust-remote-code",
    ),
    Recipe(
        *("nemo-super-mtp", "nemotron-3-super", "H200"),
        _COOKBOOK + "src/components/autoregressive/NemotronSuperConfigGenerator/index.js (tp 4)",
        f"--trust-remote-code --tp 4 {DRAFTS}EAGLE --disable-radix-cache "
        "--reasoning-parser nemotron_3 --tool-call-parser qwen3_coder",
    ),
    # -- sliding windows
    Recipe(
        *("oss-120-e3", "gpt-oss-120b", "H100"),
        _SGLANG + "cookbook/autoregressive/OpenAI/GPT-OSS.mdx",
        f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {DRAFT} --tp 2",
    ),
    Recipe(
        *("scout-e3", "llama-4-scout", "H100"),
        _COOKBOOK + "data/models/src/v0.5.6/llama4scout.yaml",
        "--tp 8 --enable-multimodal --context-length 65536 --dtype bfloat16 --trust-remote-code "
        f"{DRAFTS}EAGLE3 --speculative-draft-model-path {DRAFT} --mem-fraction-static 0.75 "
        "--cuda-graph-max-bs-decode 2",
    ),
    Recipe(
        *("gemma4-31b-mi300x", "gemma-4-31b", "MI300X"),
        _COOKBOOK + "src/components/autoregressive/Gemma4ConfigGenerator/index.js",
        "--reasoning-parser gemma4 --tool-call-parser gemma4 --mem-fraction-static 0.8",
    ),
    Recipe(
        *("step35-mtp", "step-3.5-flash", "H200"),
        _COOKBOOK + "src/components/autoregressive/Step3_5ConfigGenerator/index.js",
        f"--tp 4 --trust-remote-code {DRAFTS}EAGLE --enable-multi-layer-eagle",
    ),
    Recipe(
        *("dsv4-b300-decode", "deepseek-v4-flash", "B300"),
        _SLURM + "deepseek-v4/8k1k/disagg-b300-1p1d-tp4-tp4-mtp.yaml, decode (of V4-Pro)",
        "--trust-remote-code --tool-call-parser deepseekv4 --disaggregation-mode decode "
        "--watchdog-timeout 86400 --disaggregation-transfer-backend nixl --tensor-parallel-size 4 "
        "--data-parallel-size 1 --expert-parallel-size 1 --moe-runner-backend flashinfer_mxfp4 "
        f"--disable-flashinfer-autotune {DRAFTS}EAGLE --mem-fraction-static 0.9 "
        "--max-running-requests 8 --cuda-graph-max-bs-decode 8 --swa-full-tokens-ratio 0.1 "
        "--context-length 16384",
    ),
    # -- MLA
    Recipe(
        *("dsv3-dp-mtp", "deepseek-v3", "H200"),
        _DOCS + "DeepSeek/DeepSeek-V3.md",
        f"--tp 8 --dp 8 --enable-dp-attention {DRAFTS}EAGLE",
    ),
    Recipe(
        *("dsr1-b200-mtp", "deepseek-v3", "B200"),
        _FIXED + "dsr1_fp8_b200_mtp.sh (tp 8, ep 1, 512 at once)",
        "--tensor-parallel-size 8 --data-parallel-size 1 --cuda-graph-max-bs-decode 512 "
        "--max-running-requests 512 --mem-fraction-static 0.82 --kv-cache-dtype fp8_e4m3 "
        "--chunked-prefill-size 16384 --max-prefill-tokens 16384 "
        "--enable-flashinfer-allreduce-fusion --scheduler-recv-interval 30 --disable-radix-cache "
        "--fp8-gemm-backend flashinfer_trtllm --attention-backend trtllm_mla --stream-interval 30 "
        "--ep-size 1 --moe-runner-backend flashinfer_trtllm --quantization fp8 "
        "--speculative-algorithm EAGLE --speculative-num-steps 2 --speculative-num-draft-tokens 3 "
        "--speculative-eagle-topk 1",
    ),
    Recipe(
        *("dsr1-mi300x", "deepseek-v3", "MI300X"),
        _FIXED + "dsr1_fp8_mi300x.sh (tp 8)",
        "--trust-remote-code --tensor-parallel-size 8 --mem-fraction-static 0.8 "
        "--cuda-graph-max-bs-decode 128 --chunked-prefill-size 131072 "
        "--num-continuous-decode-steps 4 --max-prefill-tokens 131072 --kv-cache-dtype fp8_e4m3 "
        "--attention-backend aiter --disable-radix-cache",
    ),
    Recipe(
        *("glm5-mtp", "glm-5-fp8", "H200"),
        _DOCS + "GLM/GLM-5.md",
        f"--tp 8 --tool-call-parser glm47 --reasoning-parser glm45 {DRAFTS}EAGLE "
        "--mem-fraction-static 0.85",
    ),
    Recipe(
        *("kimi-k2-dp", "kimi-k2", "H200"),
        _DOCS + "Moonshotai/Kimi-K2.md",
        "--tp 8 --dp 4 --ep 4 --enable-dp-attention --trust-remote-code",
    ),
    Recipe(
        *("glm47-flash-triton", "glm-4.7-flash", "B200"),
        _DOCS + "GLM/GLM-4.7-Flash.md",
        "--reasoning-parser glm45 --tool-call-parser glm47 --attention-backend triton --tp 1",
    ),
    # -- none of the above
    Recipe(
        *("minimax-m2.5", "minimax-m2.5", "H100"),
        _DOCS + "MiniMax/MiniMax-M2.5.md",
        "--tp 8 --ep 8 --reasoning-parser minimax-append-think --trust-remote-code "
        "--mem-fraction-static 0.85 --tool-call-parser minimax-m2",
    ),
    Recipe(
        *("qwen3-30b-e3", "qwen3-30b", "H200"),
        _COOKBOOK + "docs/specbundle/usage.md",
        f"{DRAFTS}EAGLE3 --speculative-draft-model-path {DRAFT} --tp 4",
    ),
    Recipe(
        *("qwen3-235b", "qwen3-235b", "B200"),
        _DOCS + "Qwen/Qwen3.md",
        "--reasoning-parser qwen3 --tool-call-parser qwen25 --tp 8",
    ),
    # -- MLX
    Recipe(
        *("mlx-q4-mac", "qwen3-0.6b", "MLX"),
        _SGLANG + "docs/hardware-platforms/apple_metal.mdx",
        "--quantization mlx_q4 --disable-cuda-graph",
    ),
    Recipe(
        *("mlx-4bit-mac", "qwen3-0.6b-4bit", "MLX"),
        _SGLANG + "docs/hardware-platforms/apple_metal.mdx",
        "--disable-cuda-graph",
    ),
)
