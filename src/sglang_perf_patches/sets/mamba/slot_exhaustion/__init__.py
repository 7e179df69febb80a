"""A request waits if no slot for its state is free."""

from ....model.declaration import Declaration, fixes
from ....model.patch import of
from ..proven import STATES, TEXT

_MEMORY = "sglang.srt.mem_cache"
RADIX = f"{_MEMORY}.mamba_radix_cache:MambaRadixCache"
UNIFIED = f"{_MEMORY}.unified_radix_cache:UnifiedRadixCache"
POLICY = "sglang.srt.managers.schedule_policy"
ADDER = f"{POLICY}:PrefillAdder"
POOLS = f"{_MEMORY}.memory_pool"
TREES = f"{_MEMORY}.base_prefix_cache"
_POOL = f"{POOLS}:HybridReqToTokenPool"
_ALLOCATOR = f"{_MEMORY}.allocator.mamba:MambaSlotAllocator"
_LOADS = "0.5.17 …"
COMPONENT = {
    "0.5.16": f"{_MEMORY}.unified_cache_components.mamba_component:MambaComponent",
    "0.5.17 … 0.5.19": f"{_MEMORY}.unified_cache.components.mamba_component:MambaComponent",
    "0.5.20 …": f"{_MEMORY}.unified_cache.components.mamba:MambaComponent",
}
"""The part of the unified radix cache that owns states. Before, stock's default is the radix tree
for states."""

_ELSEWHERE = (
    *("tensor-parallel", "expert-parallel", "dp-attention", "lora", "deterministic"),
    *("forward-metrics", "returned-insides", "compiled"),
)
"""Each rank admits by its own lists and slots, which none of these change."""
_DRAWS = "tests/proof/mamba/exhaustion.py"

PATCH = Declaration(
    *(__name__, "0.5.9 … 0.5.23"),
    only_with=("states", "prefix-cache", "torch", "no-storage"),
    proven_with={
        **dict.fromkeys((*STATES, *_ELSEWHERE), "verify"),
        **TEXT,
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
PATCH.on(
    "… 0.5.12.post1",
    depends=of(f"{POOLS}:MambaPool", "alloc", "free", "available_size", "fork_from"),
)
PATCH.on(
    "0.5.13 …",
    depends=(
        *of(_ALLOCATOR, "alloc", "free", "available_size"),
        f"{_POOL}._alloc_ping_pong_buffer",
    ),
)
PATCH.on(
    "… 0.5.15.post1",
    depends=(
        f"{_MEMORY}.common:alloc_req_slots",
        *of(RADIX, "_match_post_processor", "evict", "evict_mamba", "mamba_evictable_size"),
        *of(RADIX, "inc_lock_ref", "dec_lock_ref"),
    ),
)
PATCH.on("0.5.13 … 0.5.15.post1", depends=(f"{RADIX}._alloc_mamba_slot",))
PATCH.on(
    "0.5.16 …",
    depends=(
        f"{_MEMORY}.allocation:alloc_req_slots",
        *of(UNIFIED, "match_prefix", "evict", "mamba_evictable_size"),
        *of(UNIFIED, "inc_lock_ref", "dec_lock_ref"),
    ),
)
for _spans, _component in COMPONENT.items():
    PATCH.on(_spans, depends=of(_component, "_alloc_mamba_slot", "cleanup_after_caching_req"))
    if _spans != "0.5.16":
        _of_loads = ("prepare_load_back", "finalize_load_back", "build_hicache_transfers")
        PATCH.on(_spans, depends=of(_component, *_of_loads))
PATCH.on("0.5.16 … 0.5.21", depends=(f"{UNIFIED}.cache_unfinished_req",))
PATCH.on(
    _LOADS,
    depends=(
        f"{UNIFIED}.init_load_back",
        f"{_MEMORY}.hybrid_cache.hybrid_pool_assembler:_evict_mamba_for_device_alloc",
    ),
)
PATCH.on(
    "0.5.22 …",
    depends=(f"{UNIFIED}.checkpoint_into_tree", f"{_MEMORY}.allocation:ensure_mamba_capacity"),
)
# States that come back from the host, and drafts.
PATCH.on(
    "… 0.5.16",
    not_with=("eagle", "draft-trees", "hierarchical-cache", "other-tracking", "prefill-server"),
)


def of_component(name: str) -> dict[str, str]:
    """A method of the component, in each release that has one."""
    return {spans: f"{component}.{name}" for spans, component in COMPONENT.items()}
