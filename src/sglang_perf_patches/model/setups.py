"""The features that a server can use beyond a plain one, and the arguments that switch them on.

A plain server uses its release's defaults on one GPU: overlap scheduling, a radix cache, CUDA
graphs, chunked prefill, pages of one token. A patch declares the features that it was proven with
(`Patch.proven_with`); any other gates it. Every other argument of `ServerArgs` is in `inert_args`.
An argument that is in neither place gates patches too, if it differs from its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .feature import NOTHING, Feature, Features
from .uses import AT_MOST_ONE, TRACKING, USES

OTHER_GPU = "other-gpu"
"""The one feature that a record of ``verify`` can prove a patch with (`verified`)."""

_PLAIN_KV = (None, "auto", "bf16", "bfloat16", "fp16", "float16", "half", "fp32", "float32")
_SPECULATION = {
    "eagle": ("eagle", "eagle3", "nextn"),
    "standalone": ("standalone",),
    "ngram": ("ngram",),
    "dflash": ("dflash", "dspark", "domino", "uno"),
    "frozen-kv-mtp": ("frozen_kv_mtp",),
}


def _feature(
    name: str,
    clause: str,
    arguments: str = "",
    *,
    off: Mapping[str, tuple[Any, ...]] | None = None,
    **more: Any,
) -> Feature:
    """A feature that any one of its arguments can switch on; the rest is as in `Feature`.

    An argument does so if it is set, or, if it ends in ``>1``, if it is a number of more than 1.
    `off` has further ones, with the values that leave the feature off.
    """
    plain: dict[str, tuple[Any, ...]] = {
        argument.removesuffix(">1"): AT_MOST_ONE if argument.endswith(">1") else NOTHING
        for argument in arguments.split()
    }
    return Feature(name=name, clause=clause, off={**plain, **(off or {})}, **more)


_FEATURES = (
    # -- where it runs
    _feature("hip", "this server runs on AMD GPUs (HIP)", "is_hip"),
    _feature("npu", "this server runs on Ascend NPUs", "is_npu"),
    _feature("xpu", "this server runs on Intel GPUs", "is_xpu"),
    _feature("musa", "this server runs on Moore Threads GPUs (MUSA)", "is_musa"),
    _feature("hpu", "this server runs on Gaudi (HPU)", "is_hpu"),
    _feature("cpu", "this server runs on a CPU with sglang's CPU kernels", "is_cpu"),
    _feature(
        "other-device",
        "the device is of an unknown kind",
        off={"device": (None, "cuda", "cpu", "mps")},
    ),
    _feature(
        OTHER_GPU,
        "the GPU is not a Hopper (H100, H200)",
        off={"gpu.capability": (None, "9.0")},
        only={"device": ("cuda",)},
    ),
    # -- over how many processes
    _feature("tensor-parallel", "tensor parallelism is on", "tp_size>1"),
    _feature("data-parallel", "data parallelism is on", "dp_size>1"),
    _feature(
        "dp-attention",
        "data-parallel attention is on",
        "enable_dp_attention attn_dp_size>1 parallel.attn_dp_enabled",
    ),
    _feature(
        "expert-parallel",
        "expert parallelism is on",
        "ep_size>1 enable_eplb moe_dp_size>1 dwdp_size>1",
        off={"moe_dense_tp_size": (None,)},
    ),
    _feature(
        "elastic-ranks",
        "ranks may join or leave the running server",
        "elastic_ep_backend ep_join_mode",
    ),
    _feature(
        "expert-all-to-all",
        "experts exchange tokens through an all-to-all backend",
        "moe_a2a_backend",
    ),
    _feature("pipeline", "pipeline parallelism is on", "pp_size>1"),
    _feature(
        "context-parallel",
        "context parallelism is on",
        "attn_cp_size>1 dcp_size>1 enable_prefill_cp enable_prefill_context_parallel "
        "enable_nsa_prefill_context_parallel enable_dsa_prefill_context_parallel "
        "enable_cp_decode_attn_tp enable_cp_tp_group_sharing enable_kv_cache_sharding "
        "enable_dsa_cache_layer_split enable_layernorm_sp enable_attn_tp_input_scattered "
        "enable_megamoe_for_layernorm_sp",
    ),
    # -- what a batch is
    _feature("two-batch-overlap", "two-batch overlap is on", "enable_two_batch_overlap"),
    _feature("one-batch-overlap", "one-batch overlap is on", "enable_single_batch_overlap"),
    _feature("no-overlap", "overlap scheduling is off", "disable_overlap_schedule"),
    _feature("mixed-chunks", "prefills are mixed with decodes", "enable_mixed_chunk"),
    _feature("whole-prefills", "prefills are not chunked", on={"chunked_prefill_size": (0, -1)}),
    _feature("dynamic-chunks", "dynamic chunk sizes are on", "enable_dynamic_chunking"),
    _feature(
        "several-steps",
        "the scheduler decodes several steps at once",
        "num_continuous_decode_steps>1",
    ),
    _feature("priorities", "requests have priorities", "enable_priority_scheduling"),
    _feature(
        "other-retraction",
        "another retraction policy is on",
        off={"retraction_policy": (None, "length")},
    ),
    _feature("items", "multi-item scoring is on", "enable_mis multi_item_scoring_delimiter"),
    _feature("embeddings", "the server computes embeddings", "is_embedding"),
    _feature("diffusion", "the model decodes by diffusion", "dllm_algorithm"),
    _feature(
        "multimodal", "the model takes images or sound", "enable_multimodal model.is_multimodal"
    ),
    _feature(
        "split-encoder",
        "images are encoded in another server, or left out",
        "encoder_only language_only language_model_only",
    ),
    # -- speculation
    *(
        _feature(
            name, f"speculation by {kinds[0].upper()} is on", on={"speculative_algorithm": kinds}
        )
        for name, kinds in _SPECULATION.items()
    ),
    _feature(
        "other-speculation",
        "speculation of an unknown kind is on",
        off={"speculative_algorithm": sum(_SPECULATION.values(), NOTHING)},
    ),
    _feature("draft-trees", "drafts branch into trees", "speculative_eagle_topk>1"),
    _feature("adaptive-drafts", "adaptive draft lengths are on", "speculative_adaptive"),
    _feature("layered-drafts", "multi-layer EAGLE is on", "enable_multi_layer_eagle"),
    _feature("other-drafter", "drafts come from another server", "decoupled_spec_role"),
    _feature(
        "draft-windows",
        "the draft model has a sliding window",
        "speculative_draft_window_size speculative_dflash_draft_window_size "
        "speculative_draft_sink_size",
    ),
    _feature(
        "draft-vocabulary", "the draft model has a smaller vocabulary", "speculative_token_map"
    ),
    # -- disaggregation
    *(
        _feature(
            f"{mode}-server", f"the server is a {mode} server", on={"disaggregation_mode": (mode,)}
        )
        for mode in ("prefill", "decode")
    ),
    _feature(
        "other-disaggregation",
        "the server's part in disaggregation is unknown or changes",
        off={
            "disaggregation_mode": (*NOTHING, "prefill", "decode"),
            "enable_pd_role_switch": NOTHING,
            "enable_pdmux": NOTHING,
        },
    ),
    _feature(
        "decode-radix-cache",
        "the decode radix cache is on",
        "disaggregation_decode_enable_radix_cache",
    ),
    _feature(
        "decode-offload", "decode KV offload is on", "disaggregation_decode_enable_offload_kvcache"
    ),
    _feature(
        "late-slots",
        "KV is received in host memory, or its slots are allocated late",
        off={"disaggregation_decode_allocation_policy": (None, "early")},
        changed=("disaggregation_decode_host_receive_threshold",),
    ),
    _feature(
        "optimistic-prefill",
        "optimistic prefill is on",
        "optimistic_prefill_attempts optimistic_prefill_retries",
    ),
    # Only a decode server uses these, though every server resolves their argument.
    _feature(
        "retracted-in-tensors",
        "retracted KV is kept in tensors, not in a host pool",
        on={"disaggregation_decode_retraction_backup": ("cpu_tensor",)},
        only={"disaggregation_mode": ("decode",)},
    ),
    _feature(
        "retracted-elsewhere",
        "it is unknown where retracted KV is kept",
        off={"disaggregation_decode_retraction_backup": (None, "host_pool", "cpu_tensor")},
        only={"disaggregation_mode": ("decode",)},
    ),
    # -- the KV cache and other states
    _feature("hierarchical-cache", "the hierarchical cache is on", "enable_hierarchical_cache"),
    _feature(
        "other-cache",
        "another prefix cache is on",
        "enable_lmcache enable_flexkv radix_cache_backend enable_unified_cache_external_linker",
    ),
    _feature(
        "sessions",
        "the prefix cache is by session, or leaves out the thinking part",
        "enable_streaming_session enable_session_radix_cache strip_thinking_cache",
    ),
    _feature("no-radix-cache", "the radix cache is off", "disable_radix_cache"),
    _feature("no-kv-cache", "there is no KV cache", "prefill_only_disable_kv_cache"),
    _feature("pages", "a KV page has several tokens", "page_size>1"),
    _feature(
        "quantised-kv",
        "the KV cache is quantised",
        off={"kv_cache_dtype": _PLAIN_KV, "speculative_draft_kv_cache_dtype": _PLAIN_KV},
    ),
    _feature("unified-memory", "the unified memory pool is on", "enable_unified_memory"),
    _feature("page-major", "KV is laid out page by page", "enable_page_major_kv_layout"),
    _feature(
        "sparse-kv",
        "sparse attention keeps KV on the host",
        "enable_hisparse enable_double_sparsity hierarchical_sparse_attention_extra_config",
    ),
    _feature("no-window-pool", "the sliding-window pool is off", "disable_hybrid_swa_memory"),
    _feature(
        "window-replay",
        "window KV is recomputed from the prompt",
        "enable_encoder_swa_bounded_replay enable_decoder_swa_bounded_replay",
    ),
    _feature(
        "tracked-states",
        "states are tracked in extra buffers",
        on=dict.fromkeys(TRACKING, ("extra_buffer",)),
    ),
    _feature(
        "other-tracking",
        "states are tracked in another way",
        off=dict.fromkeys(TRACKING, (None, "auto", "no_buffer", "extra_buffer")),
    ),
    _feature(
        "packed-states",
        "states are quantised, rounded stochastically or replayed",
        "enable_int8_mamba_checkpoint enable_mamba_cache_stochastic_rounding "
        "enable_linear_replayssm enable_linear_replayssm_spec enable_gdn_replayssm_spec",
    ),
    # -- the model
    _feature("lora", "LoRA is on", "enable_lora lora_paths uno_lora_path"),
    _feature(
        "quantised-weights",
        "weights are quantised by an argument",
        "quantization torchao_config rl_quant_profile quantize_and_serve modelopt_quant "
        "speculative_draft_model_quantization",
    ),
    _feature(
        "other-model-code",
        "the model's code is not sglang's",
        "forward_hooks",
        off={"model_impl": (None, "auto", "sglang")},
    ),
    _feature(
        "offloading",
        "weights are kept in the host's memory",
        "cpu_offload_gb kt_weight_path enable_paged_experts ple_offload_embedding",
        off={"offload_group_size": (None, -1, 0)},
    ),
    _feature(
        "memory-saver",
        "memory can be released and resumed",
        "enable_memory_saver enable_weights_cpu_backup enable_draft_weights_cpu_backup",
    ),
    # -- how it computes
    _feature(
        "deterministic",
        "deterministic inference is on",
        "enable_deterministic_inference rl_on_policy_target",
    ),
    _feature(
        "no-cuda-graphs",
        "decodes run without CUDA graphs",
        "disable_cuda_graph disable_decode_cuda_graph debug_cuda_graph",
    ),
    _feature(
        "forced-graphs",
        "breakable or piecewise graphs are forced",
        "enable_breakable_cuda_graph enforce_piecewise_cuda_graph",
    ),
    _feature("forward-metrics", "forward-pass metrics are on", "enable_forward_pass_metrics"),
    _feature("compiled", "the model is compiled by torch", "enable_torch_compile"),
    _feature(
        "megakernel",
        "a megakernel runs many layers",
        "enable_nvidia_megakernel enable_amd_monokernel",
    ),
    _feature(
        "returned-insides",
        "hidden states, experts or indices are returned",
        "enable_return_hidden_states return_hidden_states_mode enable_return_aux_hidden_states "
        "enable_return_routed_experts enable_return_indexer_topk",
    ),
    _feature("mlx-sampling", "MLX samples the tokens", "mlx_enable_sampling"),
    _feature(
        "debugging",
        "the server checks or dumps what it computes",
        "kv_canary debug_tensor_dump_output_folder msprobe_dump_config enable_nan_detection "
        "disaggregation_enable_kv_checksum",
    ),
)

FEATURES = Features(_FEATURES, USES)
"""All known features. An unclassified argument counts as on when it differs from its default."""
