"""Tracking of mamba states without querying the device for what the host knows."""

from ...model.patch import Patch
from .gdn_prefill_graph import PATCH as GDN_PREFILL_GRAPH
from .host_states import PATCH as HOST_STATES
from .lightning_rows import PATCH as LIGHTNING_ROWS
from .mamba2_chunk_indices import PATCH as CHUNK_INDICES
from .slot_exhaustion import PATCH as SLOT_EXHAUSTION
from .zero_sync import PATCH as ZERO_SYNC

SUMMARY = "hybrid models: Qwen3-Next, Qwen3.5, Nemotron-H, Kimi Linear, Falcon-H1, MiniMax"

PATCHES: tuple[Patch, ...] = (
    GDN_PREFILL_GRAPH,
    ZERO_SYNC,
    CHUNK_INDICES,
    LIGHTNING_ROWS,
    SLOT_EXHAUSTION,
    HOST_STATES,
)
