"""References to stock's definitions that several patches of this set name."""

from ...model.patch import of

ATTENTION = "sglang.srt.layers.attention"
HYBRID = f"{ATTENTION}.hybrid_linear_attn_backend"
BASE = f"{HYBRID}:MambaAttnBackendBase"
GDN = f"{ATTENTION}.linear.gdn_backend:GDNAttnBackend"
METADATA = f"{ATTENTION}.mamba.mamba2_metadata"
FORWARD_BATCH = "sglang.srt.model_executor.forward_batch_info:ForwardBatch"
SCHEDULE = "sglang.srt.managers.schedule_batch"
BATCH = f"{SCHEDULE}:ScheduleBatch"

RECORDED = (*of(BATCH, "prepare_for_extend", "_mamba_radix_cache_v2_req_prepare_for_extend"),)
"""Where the scheduler decides what to track of each request, up to 0.5.20."""

LISTS = (
    *of(FORWARD_BATCH, "init_new", "prepare_mlp_sync_batch", "_pad_inputs_to_size"),
    "sglang.srt.batch_overlap.two_batch_overlap:TboForwardBatchPreparer.filter_batch",
)
"""What relates the lists of lengths to the device tensors, and a batch to its halves."""


def chunk_targets(fla: str) -> tuple[str, ...]:
    """What computes the chunks of a batch, in the package `fla` of kernels."""
    return (f"{fla}.index:prepare_chunk_indices", f"{fla}.index:prepare_chunk_offsets")


def chunk_depends(fla: str) -> tuple[str, ...]:
    """What `chunk_targets` calls."""
    return (f"{fla}.index:prepare_lens", f"{fla}.utils:tensor_cache")
