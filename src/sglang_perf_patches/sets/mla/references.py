"""References to stock's definitions that several patches of this set name."""

ATTENTION = "sglang.srt.layers.attention"
SPECULATIVE = "sglang.srt.speculative"
FORWARD_BATCH = "sglang.srt.model_executor.forward_batch_info"

BASE = f"{ATTENTION}.base_attn_backend:AttentionBackend"
TRTLLM = f"{ATTENTION}.trtllm_mla_backend:TRTLLMMLABackend"
TRTLLM_DRAFT = f"{ATTENTION}.trtllm_mla_backend:TRTLLMMLAMultiStepDraftBackend"
FLASH_MODULE = f"{ATTENTION}.flashattention_backend"
FLASH = f"{FLASH_MODULE}:FlashAttentionBackend"

WORKER = f"{SPECULATIVE}.eagle_worker_v2"
COMMON = f"{SPECULATIVE}.eagle_worker_common"
RUNNER = f"{SPECULATIVE}.eagle_draft_extend_cuda_graph_runner:EAGLEDraftExtendCudaGraphRunner"

EXTEND_KERNEL = "sglang.kernels.ops.attention.metadata:draft_extend_set_metadata"
BEFORE_GRAPH = (
    f"{FLASH}.init_forward_metadata_out_graph",
    f"{FLASH}._bind_metadata_buffers",
    f"{FLASH}._apply_cuda_graph_metadata",
)
"""How FlashAttention's metadata is made ready for a graph, from 0.5.13 on."""
EXTEND_GRAPH = (
    *BEFORE_GRAPH,
    f"{FLASH}.init_forward_metadata_in_graph",
    f"{FLASH}.draft_extend_metadata_captured_in_graph",
    f"{FLASH}._init_full_cg_decode_metadata",
    f"{FLASH}.init_cuda_graph_state",
    f"{FLASH}.forward_extend",
    f"{RUNNER}.__init__",
    f"{RUNNER}.capture_one_shape",
    EXTEND_KERNEL,
    "sglang.kernels.ops.attention.metadata:_draft_extend_metadata_kernel",
    f"{BASE}.shared_read_ends",
    "sglang.srt.managers.scheduler:Scheduler._apply_war_barrier",
)
"""What a captured draft-extend of FlashAttention's reads, writes and waits for."""
