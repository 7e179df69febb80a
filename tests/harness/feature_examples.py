"""Arguments with which a user has each feature of a server on (`model.setups`)."""

from typing import Any

from sglang_perf_patches.model.feature import NOTHING, Feature

_DECODE = {"disaggregation_mode": "decode"}
_OTHERS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("hip", "npu", "xpu", "musa", "hpu", "cpu")},
    **{
        name: {"speculative_algorithm": name.upper().replace("-", "_")}
        for name in ("eagle", "standalone", "ngram", "dflash", "frozen-kv-mtp")
    },
    "dp-attention": {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True},
    "expert-parallel": {"tp_size": 2, "ep_size": 2},
    "elastic-ranks": {"tp_size": 2, "ep_size": 2, "elastic_ep_backend": "mooncake"},
    "expert-all-to-all": {"moe_a2a_backend": "deepep"},
    "context-parallel": {"dcp_size": 2},
    "whole-prefills": {"chunked_prefill_size": -1},
    "other-retraction": {"retraction_policy": "priority"},
    "other-drafter": {"decoupled_spec_role": "verifier"},
    "draft-windows": {"speculative_draft_window_size": 128},
    "prefill-server": {"disaggregation_mode": "prefill"},
    "decode-server": _DECODE,
    "other-disaggregation": {"enable_pdmux": True},
    "decode-radix-cache": {**_DECODE, "disaggregation_decode_enable_radix_cache": True},
    "decode-offload": {**_DECODE, "disaggregation_decode_enable_offload_kvcache": True},
    "late-slots": {**_DECODE, "disaggregation_decode_allocation_policy": "prefill_complete"},
    "retracted-in-tensors": {**_DECODE, "disaggregation_decode_retraction_backup": "cpu_tensor"},
    "optimistic-prefill": {"optimistic_prefill_attempts": 1},
    "offloading": {"cpu_offload_gb": 1},
    "pages": {"page_size": 64},
    "quantised-kv": {"kv_cache_dtype": "fp8_e4m3"},
    "unified-memory": {"enable_unified_memory": True, "attention_backend": "triton"},
    "tracked-states": dict.fromkeys(
        ("mamba_scheduler_strategy", "mamba_radix_cache_strategy"), "extra_buffer"
    ),
    "other-tracking": {"mamba_radix_cache_strategy": "extra_buffer_lazy"},
    "quantised-weights": {"quantization": "fp8"},
    "other-model-code": {"model_impl": "transformers"},
    "deterministic": {"enable_deterministic_inference": True, "attention_backend": "triton"},
    "debugging": {"kv_canary": "full"},
}


def example(feature: Feature) -> dict[str, Any]:
    """Arguments that switch it on; none if a user can't."""
    if feature.name in _OTHERS:
        return _OTHERS[feature.name]
    first = feature.arguments()[0]
    if feature.off.get(first) == NOTHING:
        return {first: True}
    return {first: 2} if feature.off.get(first) == (None, 0, 1) else {}
