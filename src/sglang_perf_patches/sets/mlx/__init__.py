"""Batched decode on Apple's MLX."""

from ...model.patch import Patch
from .batched_prefill import PATCH as BATCHED_PREFILL
from .decode_context import PATCH as DECODE_CONTEXT
from .first_buffer import PATCH as FIRST_BUFFER
from .hybrid_cache import PATCH as HYBRID_CACHE
from .hybrid_defaults import PATCH as HYBRID_DEFAULTS
from .kv_arena import PATCH as KV_ARENA
from .last_row import PATCH as LAST_ROW
from .length_groups import PATCH as LENGTH_GROUPS
from .next_turn import PATCH as NEXT_TURN
from .pool_write import PATCH as POOL_WRITE
from .relay_device import PATCH as RELAY_DEVICE
from .released_rows import PATCH as RELEASED_ROWS

SUMMARY = "servers on MLX; measured with MLX on a CPU and for CUDA, never on a Mac"

PATCHES: tuple[Patch, ...] = (
    HYBRID_CACHE,
    HYBRID_DEFAULTS,
    RELAY_DEVICE,
    POOL_WRITE,
    RELEASED_ROWS,
    FIRST_BUFFER,
    LAST_ROW,
    DECODE_CONTEXT,
    KV_ARENA,
    LENGTH_GROUPS,
    NEXT_TURN,
    BATCHED_PREFILL,
)
