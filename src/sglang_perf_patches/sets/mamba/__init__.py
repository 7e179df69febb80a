"""Tracking of mamba states without querying the device for what the host knows."""

from ...model.patch import Patch, Variant, Worth
from ...model.releases import between
from .lightning_rows import PATCH as LIGHTNING_ROWS
from .mamba2_chunk_indices import PATCH as CHUNK_INDICES
from .proven import PROVEN
from .zero_sync import PATCH as ZERO_SYNC

SUMMARY = "device-to-host syncs when mamba states are tracked"

_SETS = "sglang_perf_patches.sets.mamba"
_ATTENTION = "sglang.srt.layers.attention"
_HYBRID = f"{_ATTENTION}.hybrid_linear_attn_backend"
_BASE = f"{_HYBRID}:MambaAttnBackendBase"
_GDN = f"{_ATTENTION}.linear.gdn_backend:GDNAttnBackend"
_METADATA = f"{_ATTENTION}.mamba.mamba2_metadata"
_FLASHINFER = f"{_ATTENTION}.linear.kernels.gdn_flashinfer"
_BATCH = "sglang.srt.model_executor.forward_batch_info:ForwardBatch"
_FLA = "sglang.kernels.ops.attention.fla"


def _chunk_targets(fla: str) -> tuple[str, ...]:
    return (f"{fla}.index:prepare_chunk_indices", f"{fla}.index:prepare_chunk_offsets")


def _chunk_depends(fla: str) -> tuple[str, ...]:
    return (f"{fla}.index:prepare_lens", f"{fla}.utils:tensor_cache")


_HYBRID_BACKEND = f"{_HYBRID}:HybridLinearAttnBackend"
_RADIX = "sglang.srt.layers.radix_linear_attention"
_RUNNER = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner:PrefillCudaGraphRunner"
_POOL = "sglang.srt.mem_cache.memory_pool:HybridReqToTokenPool"
_CONV = "sglang.kernels.ops.mamba.causal_conv1d_triton"
_BACKENDS = "sglang.srt.model_executor.runner_backend"
_GRAPHS = f"{_BACKENDS}.breakable_cuda_graph_backend:BreakableCudaGraphBackend"
_BREAKABLE = (
    "sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph.breakable_cuda_graph"
)
_LOADS = "sglang.srt.managers.cache_controller:LayerDoneCounter"

_PREFILL_GRAPH = Patch(
    id="mamba.gdn-prefill-graph",
    proven_with=PROVEN["mamba.gdn-prefill-graph"],
    summary="capture gated-delta-net layers in the breakable prefill graph",
    worth=Worth(
        "a",
        "the first token of 519 tokens takes 0.592 with FlashInfer's GDN prefill",
        "tests/mamba/gpu/results.md",
        "break-519",
    ),
    absent_because="this release can't capture a linear layer in the prefill graph",
    anchors=(f"{_BASE}.supports_prefill_graph_extend",),
    variants=(
        Variant(
            releases=between("0.5.22", "0.5.23"),
            install=f"{_SETS}.gdn_prefill_graph:install",
            targets=(
                f"{_GDN}.forward_extend",
                f"{_BASE}._track_mamba_state_extend",
                *_chunk_targets(_FLA),
                f"{_HYBRID_BACKEND}.__init__",
                f"{_RUNNER}.capture_one_shape",
            ),
            adds=tuple(
                f"{_GDN}.{name}"
                for name in (
                    "supports_prefill_graph_extend",
                    "prefill_graph_extend_active",
                    "init_prefill_graph_metadata",
                    "refresh_prefill_graph_metadata",
                    "prefill_graph_max_seqs",
                )
            ),
            depends=(
                f"{_HYBRID_BACKEND}.linear_extend_in_graph",
                f"{_HYBRID_BACKEND}.init_forward_metadata_for_breakable_cuda_graph_capture",
                f"{_HYBRID_BACKEND}.prepare_forward_metadata_for_breakable_cuda_graph_replay",
                f"{_RADIX}:RadixLinearAttention.forward",
                f"{_RADIX}:_linear_attention_with_output_impl",
                f"{_RADIX}:_linear_extend_in_graph",
                f"{_RUNNER}.capture_prepare",
                f"{_RUNNER}.load_batch",
                f"{_RUNNER}.can_replay_locally",
                f"{_RUNNER}._init_forward_metadata_for_capture",
                f"{_RUNNER}._prepare_forward_metadata_for_replay",
                f"{_RUNNER}._shape_key",
                f"{_GRAPHS}.capture_one",
                f"{_GRAPHS}.replay",
                f"{_BASE}.supports_prefill_graph_extend",
                f"{_BASE}.prefill_graph_extend_active",
                f"{_BASE}.init_prefill_graph_metadata",
                f"{_BASE}.refresh_prefill_graph_metadata",
                f"{_BASE}._forward_metadata",
                f"{_BASE}._has_cpu_prefill_track_metadata",
                f"{_BASE}._init_track_conv_indices",
                f"{_BASE}._init_track_ssm_indices_from_cpu",
                f"{_GDN}.__init__",
                f"{_GDN}.init_forward_metadata",
                f"{_GDN}._init_prefill_conv_block_table",
                f"{_GDN}._init_target_verify_qkv_routing",
                f"{_GDN}._convolve_prefill",
                f"{_GDN}._prefill_gates",
                f"{_METADATA}:ForwardMetadata",
                f"{_ATTENTION}.mamba.prefill_track_metadata:build_prefill_track_plan",
                f"{_BATCH}.mamba_track_aligned_lens",
                f"{_POOL}.mamba2_layer_index",
                f"{_POOL}.mamba2_layer_cache",
                f"{_LOADS}.wait_until",
                f"{_ATTENTION}.linear.kernels.gdn_triton:TritonGDNKernel.extend",
                f"{_FLASHINFER}:FlashInferGDNKernel.__init__",
                f"{_FLASHINFER}:FlashInferGDNKernel.extend",
                f"{_FLASHINFER}:maybe_build_flashinfer_checkpoint_plan",
                f"{_BREAKABLE}:eager_on_graph",
                f"{_BREAKABLE}:BreakableCUDAGraph.replay",
                f"{_FLA}.l2norm:gdn_prefill_qkv_prepare_fwd",
                f"{_FLA}.l2norm:l2norm_fwd",
                f"{_FLA}.l2norm:l2norm_fwd_kernel",
                f"{_ATTENTION}.mamba.causal_conv1d:causal_conv1d_fn",
                f"{_CONV}:causal_conv1d_fn",
                f"{_CONV}:_causal_conv1d_fwd_kernel",
                f"{_FLA}.chunk:chunk_gated_delta_rule",
                f"{_FLA}.chunk:chunk_gated_delta_rule_fwd",
                f"{_FLA}.chunk:ChunkGatedDeltaRuleFunction.forward",
                f"{_FLA}.chunk_fwd:chunk_gated_delta_rule_fwd_intra",
                f"{_FLA}.chunk_fwd:chunk_gated_delta_rule_fwd_kkt_solve_kernel",
                f"{_FLA}.chunk_delta_h:chunk_gated_delta_rule_fwd_h",
                f"{_FLA}.chunk_delta_h:chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
                f"{_FLA}.chunk_o:chunk_fwd_o",
                f"{_FLA}.chunk_o:chunk_fwd_kernel_o",
                f"{_FLA}.cumsum:chunk_local_cumsum_scalar",
                f"{_FLA}.cumsum:chunk_local_cumsum_scalar_kernel",
                f"{_FLA}.wy_fast:recompute_w_u_fwd",
                f"{_FLA}.wy_fast:recompute_w_u_fwd_kernel",
                *_chunk_depends(_FLA),
            ),
        ),
    ),
)

PATCHES = (
    _PREFILL_GRAPH,
    ZERO_SYNC,
    CHUNK_INDICES,
    LIGHTNING_ROWS,
)
