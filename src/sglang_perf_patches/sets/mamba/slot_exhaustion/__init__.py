"""A request waits if no slot for its state is free."""

from ....model.declaration import Declaration, fixes
from ....model.patch import of
from ..proven import OWN_SLOTS, STATES

_MEMORY = "sglang.srt.mem_cache"
RADIX = f"{_MEMORY}.mamba_radix_cache:MambaRadixCache"
UNIFIED = f"{_MEMORY}.unified_radix_cache:UnifiedRadixCache"
POLICY = "sglang.srt.managers.schedule_policy"
ADDER = f"{POLICY}:PrefillAdder"
POOLS = f"{_MEMORY}.memory_pool"
TREES = f"{_MEMORY}.base_prefix_cache"
_POOL = f"{POOLS}:HybridReqToTokenPool"
_ALLOCATOR = f"{_MEMORY}.allocator.mamba:MambaSlotAllocator"
COMPONENT = {
    "0.5.16": f"{_MEMORY}.unified_cache_components.mamba_component:MambaComponent",
    "0.5.17 … 0.5.19": f"{_MEMORY}.unified_cache.components.mamba_component:MambaComponent",
    "0.5.20 …": f"{_MEMORY}.unified_cache.components.mamba:MambaComponent",
}
"""The part of the unified radix cache that owns states. Before, stock's default is the radix tree
for states."""

_DRAWS = "tests/proof/mamba/exhaustion.py"

PATCH = Declaration(
    *(__name__, "0.5.9 … 0.5.23"),
    only_with=("states", "prefix-cache", "torch", "no-storage"),
    proven_with={
        **dict.fromkeys((*STATES, *OWN_SLOTS), "verify"),
        # With text. A server does not know at boot whether images will come, and the patch reads
        # lengths, slots and states, nothing of an image.
        "multimodal": "tests/mamba/qwen_jobs.py: replies",
        "eagle": f"{_DRAWS}: drafting",
        "other-tracking": f"{_DRAWS}: late",
        "draft-trees": f"{_DRAWS}: drafting",
        "hierarchical-cache": f"{_DRAWS}: hosted",
        "prefill-server": f"{_DRAWS}: sending",
    },
    worth=fixes("stock's scheduler crashes if no slot for a state is free"),
    depends=(
        *of(ADDER, "_lock_node", "_update_prefill_budget"),
        f"{POLICY}:AddReqResult",
        f"{TREES}:EvictParams",
        "sglang.srt.managers.scheduler:Scheduler._get_new_batch_prefill_raw",
        *of(_POOL, "alloc", "free_mamba_cache"),
    ),
    awaits=(POOLS,),
)
_OF_STATES = ("_alloc_mamba_slot", "cleanup_after_caching_req")
_OF_LOADS = ("prepare_load_back", "finalize_load_back", "build_hicache_transfers")
_DEPENDS = {
    "… 0.5.12.post1": of(f"{POOLS}:MambaPool", "alloc", "free", "available_size", "fork_from"),
    "0.5.13 …": (
        *of(_ALLOCATOR, "alloc", "free", "available_size"),
        f"{_POOL}._alloc_ping_pong_buffer",
    ),
    "… 0.5.15.post1": (
        f"{_MEMORY}.common:alloc_req_slots",
        *of(RADIX, "_match_post_processor", "evict", "evict_mamba", "mamba_evictable_size"),
        *of(RADIX, "inc_lock_ref", "dec_lock_ref"),
    ),
    "0.5.13 … 0.5.15.post1": of(RADIX, "_alloc_mamba_slot"),
    "0.5.16 …": (
        f"{_MEMORY}.allocation:alloc_req_slots",
        *of(UNIFIED, "match_prefix", "evict", "mamba_evictable_size"),
        *of(UNIFIED, "inc_lock_ref", "dec_lock_ref"),
    ),
    "0.5.16": of(COMPONENT["0.5.16"], *_OF_STATES),
    "0.5.17 … 0.5.19": of(COMPONENT["0.5.17 … 0.5.19"], *_OF_STATES, *_OF_LOADS),
    "0.5.20 …": of(COMPONENT["0.5.20 …"], *_OF_STATES, *_OF_LOADS),
    "0.5.16 … 0.5.21": of(UNIFIED, "cache_unfinished_req"),
    "0.5.17 …": (
        f"{UNIFIED}.init_load_back",
        f"{_MEMORY}.hybrid_cache.hybrid_pool_assembler:_evict_mamba_for_device_alloc",
    ),
    "0.5.22 …": (f"{UNIFIED}.checkpoint_into_tree", f"{_MEMORY}.allocation:ensure_mamba_capacity"),
}
for _spans, _names in _DEPENDS.items():
    PATCH.on(_spans, depends=_names)
# States that come back from the host, and drafts.
PATCH.on(
    "… 0.5.16",
    not_with=("eagle", "draft-trees", "hierarchical-cache", "other-tracking", "prefill-server"),
)


def of_component(name: str, *spans: str) -> dict[str, str]:
    """A method of the component in these spans of `COMPONENT`; in all if none is given."""
    return {each: f"{COMPONENT[each]}.{name}" for each in spans or COMPONENT}
