"""References to stock's definitions that several patches of this set name."""

from ...model.patch import of

ATTENTION = "sglang.srt.layers.attention"
HYBRID = f"{ATTENTION}.hybrid_linear_attn_backend"
BASE = f"{HYBRID}:MambaAttnBackendBase"
GDN = f"{ATTENTION}.linear.gdn_backend:GDNAttnBackend"
METADATA = f"{ATTENTION}.mamba.mamba2_metadata"
FORWARD_BATCH = "sglang.srt.model_executor.forward_batch_info:ForwardBatch"

LISTS = (
    *of(FORWARD_BATCH, "init_new", "prepare_mlp_sync_batch", "_pad_inputs_to_size"),
    "sglang.srt.batch_overlap.two_batch_overlap:TboForwardBatchPreparer.filter_batch",
)
"""What relates the lists of lengths to the device tensors, and a batch to its halves."""
