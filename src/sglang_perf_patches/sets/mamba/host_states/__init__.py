"""``mamba.host-states``."""

from ....model.patch import Patch, of, variant
from ..proven import STATES

_MEMORY = "sglang.srt.mem_cache"
ASSEMBLER = f"{_MEMORY}.hybrid_cache.hybrid_pool_assembler"
CONTEXT = "sglang.srt.runtime_context"
STACK = f"{ASSEMBLER}:build_hybrid_mamba_stack"
KV = f"{ASSEMBLER}:build_kv_host_pool"
HOST_STATES = f"{_MEMORY}.pool_host.mamba:MambaPoolHost"
_HOST_KV = f"{_MEMORY}.pool_host.mha:MHATokenToKVPoolHost"
_POOLS = f"{_MEMORY}.memory_pool"
_COMPONENT = f"{_MEMORY}.unified_cache.components.mamba:MambaComponent"
_UNIFIED = f"{_MEMORY}.unified_radix_cache:UnifiedRadixCache"

_RELIES = (
    f"{ASSEMBLER}:_split_hicache_size",
    f"{ASSEMBLER}:build_mamba_host_pool",
    f"{ASSEMBLER}:attach_hybrid_pool_to_unified_cache",
    *of(_HOST_KV, "__init__", "get_size_per_token"),
    f"{HOST_STATES}.get_size_per_token",
    f"{_MEMORY}.pool_host.base:HostKVCache.__init__",
    f"{_POOLS}:MHATokenToKVPool.get_kv_size_bytes",
    f"{_POOLS}:MambaPool.get_kv_size_bytes",
    f"{_POOLS}:HybridReqToTokenPool.copy_mamba_state",
    *of(_COMPONENT, "build_hicache_transfers", "commit_hicache_transfer"),
    f"{_COMPONENT}.create_match_validator",
    *of(_UNIFIED, "init_hicache", "load_back"),
)

PATCH = Patch(
    id="mamba.host-states",
    only_with=("states", "host-cache", "torch", "tokens-per-state", "known-host-cache"),
    proven_with=dict.fromkeys((*STATES, "tensor-parallel", "hierarchical-cache"), "verify"),
    kind="policy",
    summary="sizes the host's state pool to match its KV pool, so that more prefixes are reused",
    anchors=(f"{ASSEMBLER}:build_mamba_host_pool",),
    absent_because="tested only on 0.5.22 and later",
    variants=(
        variant(
            *(__name__, "0.5.22 … 0.5.23"),
            targets=(STACK, KV, f"{HOST_STATES}.__init__"),
            depends=_RELIES,
            awaits=(CONTEXT,),
        ),
    ),
)
