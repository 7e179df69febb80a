"""The features that a server can use beyond a plain one, and the arguments that switch them on.

A plain server uses its release's defaults on one GPU: overlap scheduling, a radix cache, CUDA
graphs, chunked prefill, pages of one token. A patch declares the features that it was proven with
(`Patch.proven_with`); any other gates it. Every other argument of `ServerArgs` is in `immaterial`.
An argument that is in neither place gates patches too, if it differs from its default.
"""

from __future__ import annotations

from collections.abc import Mapping

from .feature import NOTHING, Feature, Features
from .immaterial import makes_no_difference
from .uses import USES

_ONE = (None, 1)
_PLAIN_KV = (None, "auto", "bf16", "bfloat16", "fp16", "float16", "half", "fp32", "float32")
# Every server resolves `disaggregation_decode_retraction_backup`, but only a decode server uses it.
_DECODE_SERVER: Mapping[str, tuple[str, ...]] = {"disaggregation_mode": ("decode",)}
_SPECULATION: Mapping[str, tuple[str, ...]] = {
    "eagle": ("eagle", "eagle3", "nextn"),
    "standalone": ("standalone",),
    "ngram": ("ngram",),
    "dflash": ("dflash", "dspark", "domino", "uno"),
    "frozen-kv-mtp": ("frozen_kv_mtp",),
}


def _switched(name: str, clause: str, *arguments: str) -> Feature:
    """A feature that is on if one of its arguments is set."""
    return Feature(name=name, clause=clause, off=dict.fromkeys(arguments, NOTHING))


def _sized(name: str, clause: str, *arguments: str) -> Feature:
    """A feature that is on if one of its arguments is more than 1."""
    return Feature(name=name, clause=clause, off=dict.fromkeys(arguments, (None, 0, 1)))


FEATURES = Features(
    (
        # -- where it runs
        *(
            Feature(name=name, clause=f"this server runs on {what}", off={f"is_{name}": NOTHING})
            for name, what in (
                ("hip", "AMD GPUs (HIP)"),
                ("npu", "Ascend NPUs"),
                ("xpu", "Intel GPUs"),
                ("musa", "Moore Threads GPUs (MUSA)"),
                ("hpu", "Gaudi (HPU)"),
                ("cpu", "a CPU with sglang's CPU kernels"),
            )
        ),
        Feature(
            name="other-device",
            clause="the device is of an unknown kind",
            off={"device": (None, "cuda", "cpu", "mps")},
        ),
        Feature(
            name="other-gpu",
            clause="the GPU is not a Hopper (H100, H200)",
            off={"gpu.capability": (None, "9.0")},
            only={"device": ("cuda",)},
        ),
        # -- over how many processes
        _sized("tensor-parallel", "tensor parallelism is on", "tp_size"),
        _sized("data-parallel", "data parallelism is on", "dp_size"),
        Feature(
            name="dp-attention",
            clause="data-parallel attention is on",
            off={
                "enable_dp_attention": NOTHING,
                "attn_dp_size": (None, 0, 1),
                "parallel.attn_dp_enabled": NOTHING,
            },
        ),
        Feature(
            name="expert-parallel",
            clause="expert parallelism is on",
            off={
                "ep_size": (None, 0, 1),
                "elastic_ep_backend": NOTHING,
                "enable_eplb": NOTHING,
                "moe_dense_tp_size": (None,),
                "moe_dp_size": (None, 0, 1),
                "dwdp_size": (None, 0, 1),
                "ep_join_mode": NOTHING,
            },
        ),
        Feature(
            name="expert-all-to-all",
            clause="experts exchange tokens through an all-to-all backend",
            off={"moe_a2a_backend": NOTHING},
        ),
        _sized("pipeline", "pipeline parallelism is on", "pp_size"),
        Feature(
            name="context-parallel",
            clause="context parallelism is on",
            off={
                "attn_cp_size": (None, 0, 1),
                "dcp_size": (None, 0, 1),
                "enable_prefill_cp": NOTHING,
                "enable_prefill_context_parallel": NOTHING,
                "enable_nsa_prefill_context_parallel": NOTHING,
                "enable_dsa_prefill_context_parallel": NOTHING,
                "enable_cp_decode_attn_tp": NOTHING,
                "enable_cp_tp_group_sharing": NOTHING,
                "enable_kv_cache_sharding": NOTHING,
                "enable_dsa_cache_layer_split": NOTHING,
                "enable_layernorm_sp": NOTHING,
                "enable_attn_tp_input_scattered": NOTHING,
                "enable_megamoe_for_layernorm_sp": NOTHING,
            },
        ),
        # -- what a batch is
        _switched("two-batch-overlap", "two-batch overlap is on", "enable_two_batch_overlap"),
        _switched("one-batch-overlap", "one-batch overlap is on", "enable_single_batch_overlap"),
        _switched("no-overlap", "overlap scheduling is off", "disable_overlap_schedule"),
        _switched("mixed-chunks", "prefills are mixed with decodes", "enable_mixed_chunk"),
        Feature(
            name="whole-prefills",
            clause="prefills are not chunked",
            on={"chunked_prefill_size": (0, -1)},
        ),
        _switched("dynamic-chunks", "dynamic chunk sizes are on", "enable_dynamic_chunking"),
        Feature(
            name="several-steps",
            clause="the scheduler decodes several steps at once",
            off={"num_continuous_decode_steps": (None, 0, 1)},
        ),
        _switched("priorities", "requests have priorities", "enable_priority_scheduling"),
        Feature(
            name="other-retraction",
            clause="another retraction policy is on",
            off={"retraction_policy": (None, "length")},
        ),
        _switched(
            "items", "multi-item scoring is on", "enable_mis", "multi_item_scoring_delimiter"
        ),
        _switched("embeddings", "the server computes embeddings", "is_embedding"),
        _switched("diffusion", "the model decodes by diffusion", "dllm_algorithm"),
        _switched(
            "multimodal",
            "the model takes images or sound",
            *("enable_multimodal", "model.is_multimodal"),
        ),
        _switched(
            "split-encoder",
            "images are encoded in another server, or left out",
            *("encoder_only", "language_only", "language_model_only"),
        ),
        # -- speculation
        *(
            Feature(
                name=name,
                clause=f"speculation by {kinds[0].upper()} is on",
                on={"speculative_algorithm": kinds},
            )
            for name, kinds in _SPECULATION.items()
        ),
        Feature(
            name="other-speculation",
            clause="speculation of an unknown kind is on",
            off={
                "speculative_algorithm": (
                    *NOTHING,
                    *(kind for kinds in _SPECULATION.values() for kind in kinds),
                )
            },
        ),
        _sized("draft-trees", "drafts branch into trees", "speculative_eagle_topk"),
        _switched("adaptive-drafts", "adaptive draft lengths are on", "speculative_adaptive"),
        _switched(
            "layered-drafts",
            "multi-layer EAGLE is on",
            "enable_multi_layer_eagle",
        ),
        _switched("other-drafter", "drafts come from another server", "decoupled_spec_role"),
        _switched(
            "draft-windows",
            "the draft model has a sliding window",
            "speculative_draft_window_size",
            "speculative_dflash_draft_window_size",
            "speculative_draft_sink_size",
        ),
        _switched(
            "draft-vocabulary", "the draft model has a smaller vocabulary", "speculative_token_map"
        ),
        # -- disaggregation
        *(
            Feature(
                name=f"{mode}-server",
                clause=f"the server is a {mode} server",
                on={"disaggregation_mode": (mode,)},
            )
            for mode in ("prefill", "decode")
        ),
        Feature(
            name="other-disaggregation",
            clause="the server's part in disaggregation is unknown or changes",
            off={
                "disaggregation_mode": (*NOTHING, "prefill", "decode"),
                "enable_pd_role_switch": NOTHING,
                "enable_pdmux": NOTHING,
            },
        ),
        _switched(
            "decode-radix-cache",
            "the decode radix cache is on",
            "disaggregation_decode_enable_radix_cache",
        ),
        _switched(
            "decode-offload",
            "decode KV offload is on",
            "disaggregation_decode_enable_offload_kvcache",
        ),
        Feature(
            name="late-slots",
            clause="KV is received in host memory, or its slots are allocated late",
            off={"disaggregation_decode_allocation_policy": (None, "early")},
            changed=("disaggregation_decode_host_receive_threshold",),
        ),
        _switched(
            "optimistic-prefill",
            "optimistic prefill is on",
            *("optimistic_prefill_attempts", "optimistic_prefill_retries"),
        ),
        Feature(
            name="retracted-in-tensors",
            clause="retracted KV is kept in tensors, not in a host pool",
            on={"disaggregation_decode_retraction_backup": ("cpu_tensor",)},
            only=_DECODE_SERVER,
        ),
        Feature(
            name="retracted-elsewhere",
            clause="it is unknown where retracted KV is kept",
            off={"disaggregation_decode_retraction_backup": (None, "host_pool", "cpu_tensor")},
            only=_DECODE_SERVER,
        ),
        # -- the KV cache and other states
        _switched(
            "hierarchical-cache", "the hierarchical cache is on", "enable_hierarchical_cache"
        ),
        _switched(
            "other-cache",
            "another prefix cache is on",
            "enable_lmcache",
            "enable_flexkv",
            "radix_cache_backend",
            "enable_unified_cache_external_linker",
        ),
        _switched(
            "sessions",
            "the prefix cache is by session, or leaves out the thinking part",
            *("enable_streaming_session", "enable_session_radix_cache", "strip_thinking_cache"),
        ),
        _switched("no-radix-cache", "the radix cache is off", "disable_radix_cache"),
        _switched("no-kv-cache", "there is no KV cache", "prefill_only_disable_kv_cache"),
        Feature(name="pages", clause="a KV page has several tokens", off={"page_size": _ONE}),
        Feature(
            name="quantised-kv",
            clause="the KV cache is quantised",
            off={"kv_cache_dtype": _PLAIN_KV, "speculative_draft_kv_cache_dtype": _PLAIN_KV},
        ),
        _switched("unified-memory", "the unified memory pool is on", "enable_unified_memory"),
        _switched("page-major", "KV is laid out page by page", "enable_page_major_kv_layout"),
        _switched(
            "sparse-kv",
            "sparse attention keeps KV on the host",
            "enable_hisparse",
            "enable_double_sparsity",
            "hierarchical_sparse_attention_extra_config",
        ),
        _switched("no-window-pool", "the sliding-window pool is off", "disable_hybrid_swa_memory"),
        _switched(
            "window-replay",
            "window KV is recomputed from the prompt",
            *("enable_encoder_swa_bounded_replay", "enable_decoder_swa_bounded_replay"),
        ),
        Feature(
            name="tracked-states",
            clause="states are tracked in extra buffers",
            on=dict.fromkeys(
                ("mamba_scheduler_strategy", "mamba_radix_cache_strategy"), ("extra_buffer",)
            ),
        ),
        Feature(
            name="other-tracking",
            clause="states are tracked in another way",
            off=dict.fromkeys(
                ("mamba_scheduler_strategy", "mamba_radix_cache_strategy"),
                (None, "auto", "no_buffer", "extra_buffer"),
            ),
        ),
        _switched(
            "packed-states",
            "states are quantised, rounded stochastically or replayed",
            "enable_int8_mamba_checkpoint",
            "enable_mamba_cache_stochastic_rounding",
            "enable_linear_replayssm",
            "enable_linear_replayssm_spec",
            "enable_gdn_replayssm_spec",
        ),
        # -- the model
        _switched("lora", "LoRA is on", "enable_lora", "lora_paths", "uno_lora_path"),
        _switched(
            "quantised-weights",
            "weights are quantised by an argument",
            *("quantization", "torchao_config", "rl_quant_profile", "quantize_and_serve"),
            *("modelopt_quant", "speculative_draft_model_quantization"),
        ),
        Feature(
            name="other-model-code",
            clause="the model's code is not sglang's",
            off={"model_impl": (None, "auto", "sglang"), "forward_hooks": NOTHING},
        ),
        Feature(
            name="offloading",
            clause="weights are kept in the host's memory",
            off={
                "cpu_offload_gb": NOTHING,
                "offload_group_size": (None, -1, 0),
                "kt_weight_path": NOTHING,
                "enable_paged_experts": NOTHING,
                "ple_offload_embedding": NOTHING,
            },
        ),
        _switched(
            "memory-saver",
            "memory can be released and resumed",
            *(
                "enable_memory_saver",
                "enable_weights_cpu_backup",
                "enable_draft_weights_cpu_backup",
            ),
        ),
        # -- how it computes
        _switched(
            "deterministic",
            "deterministic inference is on",
            *("enable_deterministic_inference", "rl_on_policy_target"),
        ),
        _switched(
            "no-cuda-graphs",
            "decodes run without CUDA graphs",
            *("disable_cuda_graph", "disable_decode_cuda_graph", "debug_cuda_graph"),
        ),
        _switched(
            "forced-graphs",
            "breakable or piecewise graphs are forced",
            *("enable_breakable_cuda_graph", "enforce_piecewise_cuda_graph"),
        ),
        _switched("forward-metrics", "forward-pass metrics are on", "enable_forward_pass_metrics"),
        _switched("compiled", "the model is compiled by torch", "enable_torch_compile"),
        _switched(
            "megakernel",
            "a megakernel runs many layers",
            "enable_nvidia_megakernel",
            "enable_amd_monokernel",
        ),
        _switched(
            "returned-insides",
            "hidden states, experts or indices are returned",
            "enable_return_hidden_states",
            "return_hidden_states_mode",
            "enable_return_aux_hidden_states",
            "enable_return_routed_experts",
            "enable_return_indexer_topk",
        ),
        _switched("mlx-sampling", "MLX samples the tokens", "mlx_enable_sampling"),
        _switched(
            "debugging",
            "the server checks or dumps what it computes",
            *("kv_canary", "debug_tensor_dump_output_folder", "msprobe_dump_config"),
            *("enable_nan_detection", "disaggregation_enable_kv_checksum"),
        ),
    ),
    makes_no_difference,
    USES,
)
"""All known features. An unclassified argument counts as on when it differs from its default."""
