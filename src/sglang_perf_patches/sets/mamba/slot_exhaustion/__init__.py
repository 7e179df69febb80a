"""``mamba.slot-exhaustion``."""

from ....model.patch import Patch, Variant, Worth, of
from ....model.releases import between
from ..proven import STATES, TEXT

_BODY = f"{__name__}.body"
_MEMORY = "sglang.srt.mem_cache"
_RADIX = f"{_MEMORY}.mamba_radix_cache:MambaRadixCache"
_UNIFIED = f"{_MEMORY}.unified_radix_cache:UnifiedRadixCache"
_POLICY = "sglang.srt.managers.schedule_policy"
_ADDER = f"{_POLICY}:PrefillAdder"
_SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"
_POOL = f"{_MEMORY}.memory_pool:HybridReqToTokenPool"
_ASSEMBLER = f"{_MEMORY}.hybrid_cache.hybrid_pool_assembler"
_ELSEWHERE = (
    *("tensor-parallel", "expert-parallel", "dp-attention", "lora", "deterministic"),
    *("forward-metrics", "returned-insides", "compiled"),
)
"""Each rank admits by its own lists and slots, which none of these change."""
_NEWER = ("eagle", "draft-trees", "hierarchical-cache", "other-tracking", "prefill-server")
_DRAWS = "tests/proof/mamba/exhaustion.py"
_SLOTS = f"{_MEMORY}.allocator.mamba:MambaSlotAllocator"


def _variant(
    first: str,
    last: str,
    install: str,
    *,
    component: str = "",
    match: str = "finalize_match_result_in_cache",
    caching: str = "cache_unfinished_req",
    commit: str = "_commit_prefill_admission",
    radix: bool = False,
    depends: tuple[str, ...] = (),
    loads: bool = False,
) -> Variant:
    """The releases from `first` to `last`.

    Args:
        first: the first one.
        last: the last one.
        install: the function of the body.
        component: the class of the unified radix cache that owns states.
        match: the method of it that copies the state of a match.
        caching: the method of the unified radix cache that asks what to cache.
        commit: the method of admission that commits itself.
        radix: whether stock makes a radix cache for these models alone.
        depends: what else these releases have.
        loads: whether it was proven with states that come back from the host, and with drafts.
    """
    targets = of(_ADDER, "add_one_req", commit)
    relies = [
        *of(_ADDER, "_lock_node", "_update_prefill_budget"),
        f"{_POLICY}:AddReqResult",
        f"{_MEMORY}.base_prefix_cache:EvictParams",
        f"{_SCHEDULER}._get_new_batch_prefill_raw",
        *of(_POOL, "alloc", "free_mamba_cache"),
        *depends,
    ]
    if radix:
        targets += of(_RADIX, "cache_unfinished_req", "match_prefix")
        relies += of(_RADIX, "_match_post_processor", "evict", "evict_mamba")
        relies += of(_RADIX, "mamba_evictable_size", "inc_lock_ref", "dec_lock_ref")
    if loads:
        targets += of(_UNIFIED, "load_back")
        relies += of(_UNIFIED, "init_load_back")
        relies += of(
            component, "prepare_load_back", "finalize_load_back", "build_hicache_transfers"
        )
        relies += (f"{_ASSEMBLER}:_evict_mamba_for_device_alloc",)
    if component:
        targets += of(component, "prepare_for_caching_req", match)
        relies += of(component, "cleanup_after_caching_req")
        relies += of(_UNIFIED, caching, "match_prefix", "evict", "mamba_evictable_size")
        relies += of(_UNIFIED, "inc_lock_ref", "dec_lock_ref")
    return Variant(
        releases=between(first, last),
        install=f"{_BODY}:{install}",
        targets=targets,
        depends=tuple(relies),
        awaits=(f"{_MEMORY}.memory_pool",),
        not_with=() if loads else _NEWER,
    )


_OLD = f"{_MEMORY}.unified_cache_components.mamba_component:MambaComponent"
_MOVED = f"{_MEMORY}.unified_cache.components.mamba_component:MambaComponent"
_NEW = f"{_MEMORY}.unified_cache.components.mamba:MambaComponent"
_STATES = f"{_MEMORY}.memory_pool:MambaPool"
_COMMON = f"{_MEMORY}.common:alloc_req_slots"
_ALLOCATION = f"{_MEMORY}.allocation:alloc_req_slots"
_BEFORE_COMMIT = "_req_inc_lock_ref"
_GIVES = (*of(_SLOTS, "alloc", "free", "available_size"), f"{_POOL}._alloc_ping_pong_buffer")
_GAVE = of(_STATES, "alloc", "free", "available_size", "fork_from")

PATCH = Patch(
    id="mamba.slot-exhaustion",
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
    summary="a request waits if no slot for its state is free",
    worth=Worth(
        "b",
        "stock's scheduler crashes if no slot for a state is free",
    ),
    variants=(
        _variant(
            *("0.5.9", "0.5.9", "install_where_slots_stay"),
            commit=_BEFORE_COMMIT,
            radix=True,
            depends=(*_GAVE, _COMMON),
        ),
        _variant(
            *("0.5.10", "0.5.12.post1", "install_in_radix_tree"),
            commit=_BEFORE_COMMIT,
            radix=True,
            depends=(*_GAVE, _COMMON),
        ),
        _variant(
            *("0.5.13", "0.5.15.post1", "install_in_radix_tree"),
            commit=_BEFORE_COMMIT,
            radix=True,
            depends=(*_GIVES, _COMMON, f"{_RADIX}._alloc_mamba_slot"),
        ),
        _variant(
            *("0.5.16", "0.5.16", "install_in_old_components"),
            component=_OLD,
            match="finalize_match_result",
            commit=_BEFORE_COMMIT,
            depends=(*_GIVES, f"{_OLD}._alloc_mamba_slot", _ALLOCATION),
        ),
        _variant(
            *("0.5.17", "0.5.19", "install_in_moved_components"),
            loads=True,
            component=_MOVED,
            commit=_BEFORE_COMMIT,
            depends=(*_GIVES, f"{_MOVED}._alloc_mamba_slot", _ALLOCATION),
        ),
        _variant(
            *("0.5.20", "0.5.21", "install_in_components"),
            loads=True,
            component=_NEW,
            depends=(*_GIVES, f"{_NEW}._alloc_mamba_slot", _ALLOCATION),
        ),
        _variant(
            *("0.5.22", "0.5.23", "install_in_components"),
            loads=True,
            component=_NEW,
            caching="checkpoint_into_tree",
            depends=(
                *(*_GIVES, f"{_NEW}._alloc_mamba_slot", _ALLOCATION),
                f"{_MEMORY}.allocation:ensure_mamba_capacity",
            ),
        ),
    ),
)
