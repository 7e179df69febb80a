"""The flags of a server's command that may be shown to others, with those values that may."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..vocabulary import HIDDEN, OTHER


def _listed(names: str) -> frozenset[str]:
    return frozenset(names.split())


_WITH_NUMBER = _listed(
    """
    --tp --tp-size --tensor-parallel-size --dp --dp-size --data-parallel-size --pp-size
    --pipeline-parallel-size --ep --ep-size --expert-parallel-size --attn-cp-size
    --moe-dense-tp-size --nnodes --node-rank --base-gpu-id --gpu-id-step --mem-fraction-static
    --page-size --context-length --max-running-requests --max-total-tokens --max-prefill-tokens
    --max-queued-requests --chunked-prefill-size --prefill-max-requests --cuda-graph-max-bs
    --cuda-graph-max-bs-decode --cuda-graph-max-bs-prefill --cuda-graph-bs --cuda-graph-bs-decode
    --cuda-graph-bs-prefill --torch-compile-max-bs --piecewise-cuda-graph-max-tokens
    --schedule-conservativeness --swa-full-tokens-ratio --mamba-full-memory-ratio
    --mamba-track-interval --max-mamba-cache-size --num-continuous-decode-steps
    --num-reserved-decode-tokens --decode-log-interval --stream-interval --scheduler-recv-interval
    --speculative-num-steps --speculative-eagle-topk --speculative-num-draft-tokens
    --speculative-draft-window-size --hicache-ratio --hicache-size --tokenizer-worker-num
    --pp-max-micro-batch-size --watchdog-timeout --cpu-offload-gb --triton-attention-num-kv-splits
    --disaggregation-decode-tp --disaggregation-decode-dp --disaggregation-prefill-pp --random-seed
    --num-prompts --request-rate --max-concurrency --random-input-len --random-output-len
    --random-range-ratio --seed --turns --batch --context --prefill --rounds --steps
    """
)
_WITH_NAME = _listed(
    """
    --attention-backend --prefill-attention-backend --decode-attention-backend --sampling-backend
    --grammar-backend --moe-runner-backend --moe-a2a-backend --speculative-algorithm
    --speculative-draft-attention-backend --speculative-attention-mode --disaggregation-mode
    --disaggregation-transfer-backend --schedule-policy --device --dtype --kv-cache-dtype
    --quantization --load-balance-method --load-format --log-level --mamba-ssm-dtype
    --mamba-scheduler-strategy --mamba-radix-cache-strategy --mamba-backend --linear-attn-backend
    --linear-attn-prefill-backend --linear-attn-decode-backend --mm-attention-backend
    --deepep-mode --radix-eviction-policy --hicache-io-backend --hicache-mem-layout
    --hicache-storage-backend --hicache-write-policy --fp8-gemm-backend --fp4-gemm-backend
    --nsa-prefill-backend --nsa-decode-backend --lora-backend --tokenizer-mode --model-impl
    --backend --dataset-name --lengths --radix --taken
    """
)
_ALONE = _listed(
    """
    --trust-remote-code --disable-radix-cache --disable-overlap-schedule --disable-cuda-graph
    --disable-cuda-graph-padding --disable-piecewise-cuda-graph --disable-hybrid-swa-memory
    --disable-custom-all-reduce --disable-chunked-prefix-cache --disable-shared-experts-fusion
    --disable-tokenizer-batch-decode --disable-flashinfer-autotune --enable-metrics
    --enable-metrics-for-all-schedulers --enable-mixed-chunk --enable-dp-attention
    --enable-dp-lm-head --enable-torch-compile --enable-lora --enable-eplb --enable-multimodal
    --enable-memory-saver --enable-p2p-check --enable-hierarchical-cache --enable-lmcache
    --enable-two-batch-overlap --enable-single-batch-overlap --enable-deterministic-inference
    --enable-priority-scheduling --enable-piecewise-cuda-graph --enable-breakable-cuda-graph
    --enable-torch-symm-mem --enable-symm-mem --enable-nccl-nvls --enable-mscclpp --enable-pdmux
    --enable-multi-layer-eagle --enable-fp32-lm-head --enable-return-hidden-states
    --enable-flashinfer-allreduce-fusion --flashinfer-mla-disable-ragged --skip-server-warmup
    --skip-tokenizer-init --is-embedding --sleep-on-idle --quick --json
    """
)
_SILENT = _listed(
    """
    --model --model-path --tokenizer-path --served-model-name --host --port --api-key
    --admin-api-key --revision --download-dir --chat-template --lora-paths
    --speculative-draft-model-path --json-model-override-args --dist-init-addr --nccl-port
    --disaggregation-bootstrap-port --disaggregation-ib-device --config --log-requests
    --log-requests-level --reasoning-parser --tool-call-parser --model-loader-extra-config
    --quantization-param-path --dataset-path --tokenizer --extra-request-body --html --patches
    """
)
"""That they are given may be shown, but not what they are given."""
_NAMES = _listed(
    """
    auto none null true false default on off
    half float16 bfloat16 float float32 fp32 fp16 bf16
    fp8 fp8_e5m2 fp8_e4m3 fp4_e2m1 int4 int8 w8a8_int8 w8a8_fp8 w4afp8 awq awq_marlin gptq
    gptq_marlin marlin gguf bitsandbytes modelopt modelopt_fp8 modelopt_fp4 mxfp4 nvfp4 moe_wna16
    compressed-tensors petit_nvfp4 qoq quark torchao blockwise_int8
    triton torch_native flex_attention nsa dsa cutlass_mla fa2 fa3 fa4 flashinfer flashmla
    trtllm_mla trtllm_mha dual_chunk_flash_attn aiter wave intel_amx intel_xpu ascend cutedsl
    hybrid_linear_attn pytorch xgrammar outlines llguidance
    cutlass deep_gemm triton_kernel flashinfer_trtllm flashinfer_cutlass flashinfer_mxfp4
    flashinfer_cutedsl deepep mooncake nixl fake mori flashinfer_cudnn
    eagle eagle3 nextn standalone ngram dflash EAGLE EAGLE3 NEXTN STANDALONE NGRAM DFLASH
    prefill decode lpm random fcfs dfs-weight lof priority routing-key lru lfu
    round_robin shortest_queue minimum_tokens total_requests total_tokens follow_bootstrap_room
    cuda cpu rocm hip xpu hpu npu mps musa debug info warning error critical
    no_buffer extra_buffer normal low_latency direct kernel layer_first page_first
    write_back write_through write_through_selective file hf3fs pt safetensors npcache dummy
    sharded_state remote remote_instance layered jax slow sglang transformers
    sglang-oai sglang-oai-chat vllm random-ids sharegpt generated-shared-prefix
    equal skewed far equal,skewed read chained changing read,chained on,off
    """
)
"""Values that are names of sglang's own."""
_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d{1,6})?|inf", re.ASCII)
_NUMBERS = re.compile(r"\d{1,6}(?:,\d{1,6}){0,15}", re.ASCII)


def shown_flags(words: Sequence[str]) -> list[str]:
    """The known flags among the words of a command, without what may be private of their values.

    >>> shown_flags(["python", "--model-path", "me/secret", "--tp", "2", "--dtype=half", "--acme"])
    ['--model-path hidden', '--tp 2', '--dtype half', 'other']
    """
    flags: list[str] = []
    for word in words[1:]:
        name, has_value, value = word.partition("=")
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            flags.append(name if is_known(name) else OTHER)
            if has_value and is_known(name):
                flags[-1] += f" {_value(name, value)}"
        elif flags and flags[-1] != OTHER:
            flags[-1] += f" {_value(flags[-1].partition(' ')[0], word)}"
    return flags


def is_known(name: str) -> bool:
    """Whether it is a flag on one of the lists."""
    return name in _WITH_NUMBER | _WITH_NAME | _ALONE | _SILENT


def takes_none(name: str) -> bool:
    """Whether it is a known flag without a value."""
    return name in _ALONE


def is_name(value: str) -> bool:
    """Whether it is one of sglang's own names."""
    return value in _NAMES


def may_show(name: str, value: str) -> bool:
    """Whether a value of a known flag is of the type that the flag takes, and not private."""
    if name in _WITH_NUMBER:
        return bool(_NUMBER.fullmatch(value) or _NUMBERS.fullmatch(value))
    return name in _WITH_NAME and value in _NAMES


def _value(name: str, value: str) -> str:
    return value if may_show(name, value) else HIDDEN
