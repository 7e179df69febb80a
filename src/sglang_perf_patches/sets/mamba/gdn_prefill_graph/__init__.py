"""Runs gated-delta-net layers in the prefill CUDA graph, so the GPU waits less."""

from ....model.declaration import Declaration, gains
from ....model.patch import of
from ..proven import ALL, RANKS
from ..references import ATTENTION, BASE, FORWARD_BATCH, GDN, HYBRID, METADATA

FLA = "sglang.kernels.ops.attention.fla"
_FLASHINFER = f"{ATTENTION}.linear.kernels.gdn_flashinfer"
HYBRID_BACKEND = f"{HYBRID}:HybridLinearAttnBackend"
_RADIX = "sglang.srt.layers.radix_linear_attention"
_EXECUTOR = "sglang.srt.model_executor"
RUNNER = f"{_EXECUTOR}.runner.prefill_cuda_graph_runner:PrefillCudaGraphRunner"
_POOL = "sglang.srt.mem_cache.memory_pool:HybridReqToTokenPool"
_CONV = "sglang.kernels.ops.mamba.causal_conv1d_triton"
_GRAPHS = f"{_EXECUTOR}.runner_backend.breakable_cuda_graph_backend:BreakableCudaGraphBackend"
BREAKABLE = f"{_EXECUTOR}.runner_backend_utils.breakable_cuda_graph.breakable_cuda_graph"
_LOADS = "sglang.srt.managers.cache_controller:LayerDoneCounter"
TABLES = "_sglang_perf_patches_tables"
"""On the metadata of a captured prefill, and on the offsets that Triton's kernels get."""
_QWEN = "tests/mamba/qwen_jobs.py"

PATCH = Declaration(
    *(__name__, "0.5.22 … 0.5.23"),
    gain_with="-tensor-parallel | tensor-parallel",
    only_with=(
        *("delta-nets", "prefills", "torch"),
        *("breakable-prefills", "captured-extends", "known-gdn-kernel"),
    ),
    # Its graphs hold kernels, which were compared on an H100 and an H200: not `other-gpu`. They
    # hold the experts' layers too, and none was captured with DeepEP: not `expert-all-to-all`.
    proven_with={
        **{
            name: "verify"
            for name in (*ALL, "hierarchical-cache", "other-tracking", "prefill-server")
            if name not in ("other-gpu", "expert-all-to-all")
        },
        **RANKS,
        "dp-attention": RANKS["tensor-parallel"],
        # NEXTN, with the model's own draft layer, whose worker stays stock's.
        "eagle": "tests/mamba/qwen_spec_jobs.py: replies",
        "multimodal": f"{_QWEN}: with_images",
        # A small model behind a real scheduler.
        **dict.fromkeys(("no-radix-cache", "mixed-chunks", "sessions"), f"{_QWEN}: with_features"),
    },
    worth=gains(
        "with a large Qwen3.5 on four H100, a 130-token prompt's first token takes "
        "0.332 of stock's time",
        "mamba.md#tp4-host-130",
    ),
    absent_because="this release can't capture a linear layer in the prefill graph",
    anchors=(f"{BASE}.supports_prefill_graph_extend",),
    depends=(
        "sglang.srt.environ:Envs.SGLANG_DISABLE_KDA_PREFILL_GRAPH_EXTEND",
        "sglang.srt.environ:Envs.SGLANG_KDA_PREFILL_GRAPH_MAX_SEQS",
        f"{HYBRID_BACKEND}.linear_extend_in_graph",
        f"{HYBRID_BACKEND}.init_forward_metadata_for_breakable_cuda_graph_capture",
        f"{HYBRID_BACKEND}.prepare_forward_metadata_for_breakable_cuda_graph_replay",
        f"{_RADIX}:RadixLinearAttention.forward",
        f"{_RADIX}:_linear_attention_with_output_impl",
        f"{_RADIX}:_linear_extend_in_graph",
        *of(RUNNER, "__init__", "capture_prepare", "load_batch", "can_replay_locally"),
        f"{RUNNER}._init_forward_metadata_for_capture",
        *of(RUNNER, "_prepare_forward_metadata_for_replay", "_shape_key"),
        f"{_GRAPHS}.__init__",
        "sglang.srt.distributed.parallel_state:GroupCoordinator.barrier",
        *of(_GRAPHS, "capture_one", "replay"),
        *of(BASE, "supports_prefill_graph_extend", "prefill_graph_extend_active"),
        *of(BASE, "init_prefill_graph_metadata", "refresh_prefill_graph_metadata"),
        *of(BASE, "_forward_metadata", "_has_cpu_prefill_track_metadata"),
        *of(BASE, "_init_track_conv_indices", "_init_track_ssm_indices_from_cpu"),
        *of(GDN, "__init__", "init_forward_metadata", "_init_prefill_conv_block_table"),
        *of(GDN, "_init_target_verify_qkv_routing", "_convolve_prefill", "_prefill_gates"),
        f"{METADATA}:ForwardMetadata",
        f"{ATTENTION}.mamba.prefill_track_metadata:build_prefill_track_plan",
        *of(FORWARD_BATCH, "mamba_track_aligned_lens", "init_mlp_sync_metadata"),
        f"{FORWARD_BATCH}.prepare_mlp_sync_batch",
        *of(_POOL, "mamba2_layer_index", "mamba2_layer_cache"),
        f"{_LOADS}.wait_until",
        f"{ATTENTION}.linear.kernels.gdn_triton:TritonGDNKernel.extend",
        f"{_FLASHINFER}:FlashInferGDNKernel.__init__",
        f"{_FLASHINFER}:FlashInferGDNKernel.extend",
        f"{_FLASHINFER}:maybe_build_flashinfer_checkpoint_plan",
        f"{BREAKABLE}:eager_on_graph",
        f"{BREAKABLE}:BreakableCUDAGraph.replay",
        *of(FLA, "l2norm:gdn_prefill_qkv_prepare_fwd", "l2norm:l2norm_fwd"),
        f"{FLA}.l2norm:l2norm_fwd_kernel",
        f"{ATTENTION}.mamba.causal_conv1d:causal_conv1d_fn",
        f"{_CONV}:causal_conv1d_fn",
        f"{_CONV}:_causal_conv1d_fwd_kernel",
        *of(FLA, "chunk:chunk_gated_delta_rule", "chunk:chunk_gated_delta_rule_fwd"),
        f"{FLA}.chunk:ChunkGatedDeltaRuleFunction.forward",
        f"{FLA}.chunk_fwd:chunk_gated_delta_rule_fwd_intra",
        f"{FLA}.chunk_fwd:chunk_gated_delta_rule_fwd_kkt_solve_kernel",
        f"{FLA}.chunk_delta_h:chunk_gated_delta_rule_fwd_h",
        f"{FLA}.chunk_delta_h:chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
        *of(FLA, "chunk_o:chunk_fwd_o", "chunk_o:chunk_fwd_kernel_o"),
        f"{FLA}.cumsum:chunk_local_cumsum_scalar",
        *of(FLA, "cumsum:chunk_local_cumsum_scalar_kernel", "wy_fast:recompute_w_u_fwd"),
        f"{FLA}.wy_fast:recompute_w_u_fwd_kernel",
        *of(FLA, "index:prepare_lens", "utils:tensor_cache"),
    ),
)
