"""Sliding-window KV: in disaggregated decode, and on ordinary servers."""

from ...model import releases
from ...model.patch import Marker, Patch, Variant, Worth
from .proven import PROVEN

SUMMARY = "sliding-window KV: reserved at full length, and in a pool of a fixed ratio"

_DECODE = "sglang.srt.disaggregation.decode"
_QUEUE = f"{_DECODE}:DecodePreallocQueue"
_OLD_POOL = "sglang.srt.mem_cache.swa_memory_pool"
_OLD_ALLOCATOR = f"{_OLD_POOL}:SWATokenToKVPoolAllocator"
_NEW_ALLOCATOR = "sglang.srt.mem_cache.allocator.swa:SWATokenToKVPoolAllocator"
_OLD_PARTS = "sglang.srt.mem_cache.allocator"
_BATCH = "sglang.srt.managers.schedule_batch"
_TAIL = "sglang_perf_patches.sets.swa.tail_prealloc"


def _of(owner: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{owner}.{name}" for name in names)


_FEATURE_TARGETS = (
    *_of(
        _QUEUE,
        "__init__",
        "_check_if_req_exceed_kv_capacity",
        "_allocatable_tokens",
        "_pre_alloc",
        "pop_preallocated",
        "resume_retracted_reqs",
    ),
    f"{_OLD_ALLOCATOR}.free_swa",
    *_of(f"{_OLD_POOL}:SWAKVPool", "get_cpu_copy", "load_cpu_copy"),
)
_FEATURE_ADDS = (
    *_of(_QUEUE, "_uses_swa_tail_prealloc", "_swa_peak_tokens"),
    f"{_OLD_ALLOCATOR}.alloc_extend_swa_tail",
)
_FEATURE_DEPENDS = (
    f"{_DECODE}:CLIP_MAX_NEW_TOKEN",
    f"{_DECODE}:DecodeRequest",
    *_of(_QUEUE, "add", "_update_handshake_waiters"),
    *_of(
        _OLD_ALLOCATOR,
        "__init__",
        "alloc",
        "alloc_extend",
        "alloc_decode",
        "available_size",
        "full_available_size",
        "swa_available_size",
        "free",
        "clear",
        "get_cpu_copy",
        "load_cpu_copy",
    ),
    *_of(f"{_OLD_PARTS}:PagedTokenToKVPoolAllocator", "alloc_extend", "free"),
    *_of(f"{_OLD_PARTS}:TokenToKVPoolAllocator", "alloc", "free", "available_size"),
    f"{_OLD_PARTS}:BaseTokenToKVPoolAllocator.available_size",
    *_of("sglang.srt.mem_cache.memory_pool:MHATokenToKVPool", "get_cpu_copy", "load_cpu_copy"),
    *_of(f"{_BATCH}:ScheduleBatch", "maybe_evict_swa", "_evict_swa", "release_req"),
    *_of(f"{_BATCH}:Req", "offload_kv_cache", "load_kv_cache", "reset_for_retract"),
    "sglang.srt.mem_cache.chunk_cache:SWAChunkCache",
    "sglang.srt.mem_cache.chunk_cache:ChunkCache",
    "sglang.srt.mem_cache.common:release_kv_cache",
    "sglang.srt.disaggregation.utils:prepare_abort",
)
_PRICE = f"{_QUEUE}._prealloc_required_tokens"
_PRICE_DEPENDS = _of(
    _QUEUE,
    "_uses_swa_tail_prealloc",
    "_swa_tail_len",
    "_prealloc_kv_lens",
    "_swa_tail_allocatable_token_budget",
    "pop_preallocated",
    "resume_retracted_reqs",
)
_FIX_DEPENDS = (
    *_PRICE_DEPENDS,
    f"{_BATCH}:ScheduleBatch._evict_swa",
    f"{_BATCH}:Req.reset_for_retract",
    "sglang.srt.mem_cache.common:release_kv_cache",
)

TAIL_PREALLOC = Patch(
    id="swa.tail-prealloc",
    proven_with=PROVEN["swa.tail-prealloc"],
    summary="a request in transfer holds sliding-window KV for its window, not for its prompt",
    worth=Worth(
        "c",
        "sgl-project/sglang#24857",
    ),
    upstream=(
        "sgl-project/sglang#24857",
        "sgl-project/sglang#25805",
        "sgl-project/sglang#27779",
        "sgl-project/sglang#28085",
        "sgl-project/sglang#33794",
    ),
    built_in_since="0.5.18",
    markers=(Marker(definition=_PRICE, contains="ceil_align"),),
    variants=(
        Variant(
            releases=("0.5.9",),
            install=f"{_TAIL}:install",
            targets=_FEATURE_TARGETS,
            adds=_FEATURE_ADDS,
            depends=_FEATURE_DEPENDS,
        ),
        Variant(
            releases=releases.between("0.5.10", "0.5.11"),
            install=f"{_TAIL}:install",
            targets=_FEATURE_TARGETS,
            adds=_FEATURE_ADDS,
            depends=(*_FEATURE_DEPENDS, f"{_QUEUE}._resolve_pending_reqs"),
        ),
        Variant(
            releases=("0.5.12",),
            install=f"{_TAIL}:install_all_fixes",
            targets=(
                f"{_OLD_ALLOCATOR}.alloc_extend_swa_tail",
                f"{_OLD_ALLOCATOR}.free_swa",
                f"{_QUEUE}._pre_alloc",
                _PRICE,
            ),
            depends=_FIX_DEPENDS,
            note="The fixes #25805, #27779, #28085 and #33794.",
        ),
        Variant(
            releases=("0.5.12.post1",),
            install=f"{_TAIL}:install_fixes",
            targets=(f"{_OLD_ALLOCATOR}.free_swa", f"{_QUEUE}._pre_alloc", _PRICE),
            depends=(*_FIX_DEPENDS, f"{_OLD_ALLOCATOR}.alloc_extend_swa_tail"),
            note="The fixes #27779, #28085 and #33794.",
        ),
        Variant(
            releases=releases.between("0.5.13", "0.5.13.post1"),
            install=f"{_TAIL}:install_fixes_moved",
            targets=(f"{_NEW_ALLOCATOR}.free_swa", f"{_QUEUE}._pre_alloc", _PRICE),
            depends=(*_FIX_DEPENDS, f"{_NEW_ALLOCATOR}.alloc_extend_swa_tail"),
            note="The fixes #27779, #28085 and #33794.",
        ),
        Variant(
            releases=releases.between("0.5.14", "0.5.17"),
            install=f"{_TAIL}:install_page_price",
            targets=(_PRICE,),
            depends=_PRICE_DEPENDS,
            note="The fix #33794.",
        ),
    ),
)

_SETS = "sglang_perf_patches.sets.swa"
_ANCHORS = (f"{_QUEUE}._pre_alloc",)
_FIRST_WITH_ALLOCATOR_MODULE = releases.between("0.5.13", "0.5.15.post1")
_UNPAGED = f"{_SETS}.page_size_1"
_GATE = f"{_QUEUE}._uses_swa_tail_prealloc"
_STOCK_RULE = _of(
    _QUEUE,
    "_swa_tail_len",
    "_swa_retractable_len",
    "_prealloc_kv_lens",
    "_prealloc_required_tokens",
    "_swa_aware_allocatable_token_budgets",
    "_swa_tail_allocatable_token_budget",
    "_allocatable_token_budgets",
    "pop_preallocated",
    "resume_retracted_reqs",
)
_ALLOCATES = ("__init__", "alloc", "free", "free_swa", "clear", "swa_available_size")
_EVICTED = (  # reads how far a request is evicted, or copies mapped slots
    f"{_BATCH}:ScheduleBatch._evict_swa",
    f"{_BATCH}:Req.reset_for_retract",
    "sglang.srt.mem_cache.common:release_kv_cache",
    *_of(f"{_OLD_POOL}:SWAKVPool", "get_cpu_copy", "load_cpu_copy"),
)


_CACHE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
_LIMIT = _of(_QUEUE, "__init__", "_check_if_req_exceed_kv_capacity")


def _in_function(first: str, last: str, *more: str, copies: tuple[str, ...] = ()) -> Variant:
    """swa.page-size-1 from 0.5.16 on: one body, and what some releases have besides.

    Args:
        first: the first release.
        last: the last one.
        more: what else it relies on.
        copies: from 0.5.18 on the names of what keeps retracted KV in the host's pool.
    """
    name = "install_in_function"
    if copies:
        name = "install_with_copies" if copies == _COPIES else "install_with_old_copies"
        more = (
            *more,
            *(f"sglang.srt.mem_cache.common:{each}" for each in ("RetractionBackup", *copies)),
            f"{_BATCH}:Req.offload_kv_cache",
            f"{_BATCH}:Req.load_kv_cache",
            f"{_CACHE}._retraction_device_transfers",
        )
    return Variant(
        releases=releases.between(first, last),
        install=f"{_UNPAGED}:{name}",
        targets=(
            _GATE,
            f"{_DECODE}:alloc_for_decode_prealloc",
            *_LIMIT,
            *_of(_CACHE, *copies),
        ),
        depends=(
            *_STOCK_RULE,
            f"{_QUEUE}._pre_alloc",
            *_of(_NEW_ALLOCATOR, *_ALLOCATES),
            *_EVICTED,
            *more,
        ),
    )


_OLD_COPIES = ("retraction_backup", "retraction_restore", "retraction_discard")
_COPIES = ("backup_kv_cache", "restore_kv_cache", "discard_kv_cache_backup")
_SEGMENTS = (
    "sglang.srt.mem_cache.common:free_kv_row_segments",
    *_of(_NEW_ALLOCATOR, "free_swa_segment", "free_full_segment"),
)

PAGE_SIZE_1 = Patch(
    id="swa.page-size-1",
    proven_with=PROVEN["swa.page-size-1"],
    summary="what swa.tail-prealloc does, at page size 1, where upstream leaves it off",
    worth=Worth(
        "a",
        "the median first token of 10 prompts on 0.5.23 comes after 0.144 s, not 0.289 s",
        "tests/swa/gpu/results.md",
        "first-10",
    ),
    anchors=_ANCHORS,
    requires=("swa.tail-prealloc",),
    variants=(
        Variant(
            releases=releases.between("0.5.9", "0.5.11"),
            install=f"{_UNPAGED}:install",
            targets=(),
            adds=(_GATE,),
            depends=(*_ANCHORS, *_of(_OLD_ALLOCATOR, *_ALLOCATES)),
        ),
        Variant(
            releases=releases.between("0.5.12", "0.5.12.post1"),
            install=f"{_UNPAGED}:install_in_queue",
            targets=(_GATE, f"{_QUEUE}._pre_alloc", *_LIMIT),
            depends=(*_STOCK_RULE, *_of(_OLD_ALLOCATOR, *_ALLOCATES), *_EVICTED),
        ),
        Variant(
            releases=_FIRST_WITH_ALLOCATOR_MODULE,
            install=f"{_UNPAGED}:install_in_queue",
            targets=(_GATE, f"{_QUEUE}._pre_alloc", *_LIMIT),
            depends=(*_STOCK_RULE, *_of(_NEW_ALLOCATOR, *_ALLOCATES), *_EVICTED),
        ),
        _in_function("0.5.16", "0.5.17"),
        _in_function("0.5.18", "0.5.18", copies=_OLD_COPIES),
        _in_function(
            *("0.5.19", "0.5.19", "sglang.srt.mem_cache.common:free_kv_row_segments"),
            copies=_OLD_COPIES,
        ),
        _in_function("0.5.20", "0.5.20", *_SEGMENTS, copies=_OLD_COPIES),
        _in_function(
            *("0.5.21", "0.5.23", *_SEGMENTS),
            *_of(_QUEUE, "_alloc_for_decode_prealloc", "_uses_swa_reservation"),
            "sglang.srt.mem_cache.base_prefix_cache:BasePrefixCache.evict_sliding_windows",
            copies=_COPIES,
        ),
    ),
)

_BOUNDED = f"{_SETS}.window_bounded_admission"

WINDOW_BOUNDED_ADMISSION = Patch(
    id="swa.window-bounded-admission",
    proven_with=PROVEN["swa.window-bounded-admission"],
    kind="policy",
    summary="admission counts a request by what its window lets it hold",
    anchors=_ANCHORS,
    requires=("swa.tail-prealloc",),
    variants=(
        Variant(
            releases=releases.between("0.5.9", "0.5.11"),
            install=f"{_BOUNDED}:install",
            targets=(),
            adds=(f"{_QUEUE}._swa_peak_tokens",),
            depends=(*_ANCHORS, *_of(f"{_BATCH}:ScheduleBatch", "maybe_evict_swa", "_evict_swa")),
            awaits=(_DECODE,),
        ),
        Variant(
            releases=releases.between("0.5.12", "0.5.23"),
            install=f"{_BOUNDED}:install_in_stock_rule",
            targets=_of(
                _QUEUE,
                "_prealloc_kv_lens",
                "_prealloc_required_tokens",
                "_swa_tail_allocatable_token_budget",
                "_check_if_req_exceed_kv_capacity",
            ),
            depends=(
                *_of(_QUEUE, "_uses_swa_tail_prealloc", "_swa_tail_len", "_swa_retractable_len"),
                *_of(_QUEUE, "_swa_aware_allocatable_token_budgets", "pop_preallocated"),
                f"{_QUEUE}.resume_retracted_reqs",
                *_of(f"{_BATCH}:ScheduleBatch", "maybe_evict_swa", "_evict_swa"),
                f"{_DECODE}:CLIP_MAX_NEW_TOKEN",
            ),
        ),
    ),
)

_IDLE = f"{_SETS}.idle_admission"
_DECODES = (  # what a request needs until its end, and what can make room for it
    *_of(f"{_BATCH}:ScheduleBatch", "maybe_evict_swa", "_evict_swa", "retract_decode"),
    f"{_BATCH}:ScheduleBatch.new_tokens_required_next_decode",
    f"{_DECODE}:DecodeReqToTokenPool.available_size",
)

IDLE_ADMISSION = Patch(
    id="swa.idle-admission",
    proven_with=PROVEN["swa.idle-admission"],
    summary="an idle server admits a request that fits its sliding-window pool",
    worth=Worth(
        "b",
        "requests that fit an idle decode server's pool are never answered in stock",
    ),
    anchors=_ANCHORS,
    requires=("swa.tail-prealloc",),
    variants=(
        Variant(
            releases=releases.between("0.5.9", "0.5.11"),
            install=f"{_IDLE}:install",
            targets=(),
            adds=(f"{_QUEUE}._swa_peak_tokens",),
            depends=(*_ANCHORS, *_DECODES),
            awaits=(_DECODE,),
        ),
        Variant(
            releases=releases.between("0.5.12", "0.5.23"),
            install=f"{_IDLE}:install_in_stock_rule",
            targets=_of(_QUEUE, "_prealloc_kv_lens", "_prealloc_required_tokens"),
            depends=(
                *_of(_QUEUE, "_uses_swa_tail_prealloc", "_swa_tail_len"),
                *_of(_QUEUE, "_swa_aware_allocatable_token_budgets", "pop_preallocated"),
                f"{_QUEUE}._swa_tail_allocatable_token_budget",
                f"{_QUEUE}.resume_retracted_reqs",
                *_DECODES,
                f"{_DECODE}:CLIP_MAX_NEW_TOKEN",
            ),
        ),
    ),
)

_CONFIGURATORS = "sglang.srt.model_executor.pool_configurator"
_CONFIGURATOR = f"{_CONFIGURATORS}:HybridSWAPoolConfigurator"


def _pool_ratio(first: str, last: str, *more: str) -> Variant:
    """swa.pool-ratio: one body, and what some releases have besides."""
    return Variant(
        releases=releases.between(first, last),
        install=f"{_SETS}.pool_ratio:install",
        targets=_of(
            _CONFIGURATOR,
            "__init__",
            "calculate_pool_sizes",
            "calculate_pool_sizes_from_max_tokens",
        ),
        depends=(
            f"{_CONFIGURATOR}._solve_pool_sizes",
            f"{_CONFIGURATORS}:create_memory_pool_configurator",
            *_of(f"{_BATCH}:ScheduleBatch", "maybe_evict_swa", "_evict_swa"),
            *more,
        ),
    )


POOL_RATIO = Patch(
    id="swa.pool-ratio",
    proven_with=PROVEN["swa.pool-ratio"],
    kind="policy",
    summary="the sliding-window pool is sized by running requests and window",
    variants=(
        _pool_ratio("0.5.11", "0.5.19"),
        _pool_ratio("0.5.20", "0.5.21", f"{_CONFIGURATOR}._recompute_cell_size"),
        _pool_ratio(
            *("0.5.22", "0.5.23"),
            f"{_CONFIGURATOR}._recompute_cell_size",
            f"{_CONFIGURATOR}._swa_cell_bytes",
        ),
    ),
)

_EVICTS = (
    *_of(f"{_BATCH}:ScheduleBatch", "_evict_swa", "maybe_evict_swa", "retract_decode"),
    *_of(f"{_BATCH}:ScheduleBatch", "new_tokens_required_next_decode", "release_req"),
    f"{_BATCH}:Req.reset_for_retract",
    "sglang.srt.managers.scheduler:Scheduler.update_running_batch",
)

EVICT_BEFORE_RETRACT = Patch(
    id="swa.evict-before-retract",
    proven_with=PROVEN["swa.evict-before-retract"],
    kind="policy",
    summary="KV behind the window is freed before a running request is retracted",
    upstream=("sgl-project/sglang#28246",),
    anchors=(f"{_BATCH}:ScheduleBatch._evict_swa",),
    variants=(
        Variant(
            releases=releases.between("0.5.9", "0.5.13.post1"),
            install=f"{_SETS}.evict_before_retract:install",
            targets=(f"{_BATCH}:ScheduleBatch.check_decode_mem",),
            depends=_EVICTS,
        ),
        Variant(
            releases=releases.between("0.5.14", "0.5.20"),
            install=f"{_SETS}.evict_before_retract:install",
            targets=(f"{_BATCH}:ScheduleBatch.check_decode_mem",),
            depends=(*_EVICTS, "sglang.srt.mem_cache.common:free_swa_out_of_window_slots"),
        ),
        Variant(
            releases=releases.between("0.5.21", "0.5.23"),
            install=f"{_SETS}.evict_before_retract:install",
            targets=(f"{_BATCH}:ScheduleBatch.check_decode_mem",),
            depends=(
                *_EVICTS,
                "sglang.srt.mem_cache.common:free_swa_out_of_window_slots",
                "sglang.srt.mem_cache.base_prefix_cache:BasePrefixCache.evict_sliding_windows",
            ),
        ),
    ),
)

PATCHES: tuple[Patch, ...] = (
    TAIL_PREALLOC,
    PAGE_SIZE_1,
    IDLE_ADMISSION,
    WINDOW_BOUNDED_ADMISSION,
    EVICT_BEFORE_RETRACT,
    POOL_RATIO,
)
