"""Stock's definitions that several patches of this set name, and where it has a request's slots."""

from typing import Any

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


def holder(req: Any) -> Any:
    """What has a request's slots for states: from 0.5.19 on its KV record, before the request."""
    record = getattr(req, "kv", None)
    return record if hasattr(record, "mamba_pool_idx") else req
