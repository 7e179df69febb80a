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
    why=(
        "A decode server allocates the KV of a request before the prefill server sends it. Up to "
        "0.5.11 stock allocates as much sliding-window KV as the prompt is long, although only the "
        "window is sent and read. So the smaller pool limits how many requests are in transfer, "
        "and prompts longer than that pool are refused. Stock 0.5.12 allocates only the window, "
        "with faults that later releases fix. On 0.5.12 two live requests can own one slot. Up to "
        "0.5.13.post1 slots behind a sequence's end stay mapped, missing slots are not recorded as "
        "evicted, and 512 more tokens are reserved for each request. Up to 0.5.17 requests are "
        "priced in tokens but allocated in pages. From 0.5.14 on, without that reserve, the "
        "scheduler can therefore end with 'KV cache is full'."
    ),
    how=(
        "Before 0.5.12: allocation gives sliding-window slots only to the pages that hold the last "
        "window of tokens. The two pools have budgets of their own. Stock's own code admits "
        "requests first come, first served, until either budget is used up. A retracted request's "
        "copy in CPU memory holds what is mapped. A request that can't fit even in empty pools "
        "gets a 400. From 0.5.12 to 0.5.17: the fixes that the release lacks. Stock's code runs "
        "for a model without a window, other allocators or pools, hisparse, the decode radix "
        "cache, decode KV offload, pipeline parallelism, and data parallelism with a draft model. "
        "It also runs at page size 1, for which there is swa.page-size-1."
    ),
    gain=(
        "Disaggregated decode servers of 0.5.9 to 0.5.11 hold more requests in transfer, and their "
        "first tokens come sooner. 0.5.12 to 0.5.17 get fixes of faults; no gain was measured "
        "there."
    ),
    figures=(
        ("measured", "stock", "patched"),
        ("Real queue, CPU, 0.5.9 to 0.5.11; window 4096, page 64, pools 262144 and 4M, 64 queued",),
        ("admitted, prompts of 8k", "30", "63"),
        ("admitted, prompts of 32k", "7", "63"),
        ("admitted, prompts of 128k, where the full pool is the limit", "1", "31"),
        ("Decode server on one H200, 0.5.11; window 127, page 64, pool 65536, a burst of 64",),
        ("median time to the first token, prompts of 8k", "3.42 s", "1.66 s"),
        ("median time to the first token, prompts of 32k", "1.19 s", "0.81 s"),
        ("last first token, prompts of 8k", "4.14 s", "1.66 s"),
        ("last first token, prompts of 32k", "3.32 s", "0.81 s"),
    ),
    worth=Worth(
        "c",
        "sgl-project/sglang#24857",
    ),
    condition=(
        "Prompts longer than the window, and a sliding-window pool that is the scarcer one. With r "
        "its size over the full pool's, the gain in requests is at most min(1/r, prompt/window): "
        "at most 1.25 at the default r = 0.8. These are requests that wait for their transfer; "
        "upstream measured 1 % of throughput and 4 % of time to first token. Up to 0.5.10.post1 a "
        "prompt longer than the sliding-window pool is still refused on arrival, because stock "
        "takes that pool's size for the longest request."
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
    why=(
        "Upstream's change needs a page size above 1 and is silently off otherwise. 1 is the "
        "default on CUDA unless an attention backend needs another one, also in the newest "
        "release. There each request in transfer holds sliding-window KV for its whole prompt, and "
        "a prompt longer than that pool is refused."
    ),
    how=(
        "The rule holds at page size 1 too. Allocation there gives sliding-window slots only to "
        "the last window of tokens. Budgets, admission and eviction are stock's own, or those of "
        "swa.tail-prealloc. Stock's code runs at other page sizes, and in the cases that "
        "swa.tail-prealloc leaves to it. From 0.5.12 on, where admission is stock's own, pipeline "
        "parallelism and data parallelism with a draft model are supported. From 0.5.19 on a "
        "retracted request that the host's pool has no room for is kept in tensors on the host, "
        "as in older releases; stock would abort it."
    ),
    gain=(
        "A decode server that its sliding-window pool limits gains: more requests are in transfer "
        "and first tokens come sooner. Behind one prefill server they come three times as soon on "
        "0.5.17, and with long prompts in 0.55 of stock's time on 0.5.23. A server that waits for "
        "its prefill server does not gain, as 0.5.23 with prompts of mixed lengths."
    ),
    figures=(
        ("measured", "stock", "patched"),
        ("Decode server on one H200, 0.5.17; sliding-window pool 16448, 64 prompts at once",),
        ("in flight, prompts of 8k", "2", "64"),
        ("last first token, prompts of 8k", "73.5 s", "1.0 s"),
        ("prompts of 32k", "all refused", "all served"),
        ("Real transfer behind one prefill server, 0.5.17; 64 prompts of 1 to 2400, two runs",),
        ("in transfer at once", "13", "63"),
        ("median time to the first token", "2.62, 3.26 s", "0.81, 1.12 s"),
        ("tokens a second", "749, 834", "1366, 1670"),
        ("The same on 0.5.23",),
        ("in transfer at once", "13", "63"),
        ("median time to the first token", "0.76, 1.04 s", "0.83, 1.02 s"),
        ("tokens a second", "1472, 1658", "1543, 1607"),
        ("The same on 0.5.23 with 10 prompts of 8000, two runs",),
        ("in transfer at once", "2", "10"),
        ("median time to the first token", "0.29, 0.24 s", "0.14, 0.15 s"),
        ("last first token", "0.61, 0.54 s", "0.22, 0.22 s"),
        ("tokens a second", "433, 443", "501, 529"),
        ("Real queue on a CPU, 0.5.23; window 128, pools of 65536 and 1M, 64 queued",),
        ("admitted, prompts of 8k", "7", "64"),
        ("admitted, prompts of 32k", "1", "31"),
        ("admitted, prompts of 128k", "0 (all refused)", "7"),
        ("The same queue, 64 requests of 1000 + 400 tokens, the pool of 16512 that stock makes",),
        ("tokens per decode step", "21.0", "63.7"),
    ),
    worth=Worth(
        "a",
        "10 prompts of 8,000 tokens on 0.5.23 have their first token after 0.144 s, not 0.289 s",
        "tests/swa/gpu/results.md",
        "first-10",
    ),
    condition=(
        "Page size 1, prompts longer than the window, and a sliding-window pool that is the "
        "scarcer one: see swa.tail-prealloc."
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
    why=(
        "Stock admits a request if the sliding-window pool has room for the tail of its prompt and "
        "min(max_new_tokens, 4096) more tokens. KV behind the window is freed while a request "
        "decodes, so no request ever holds that much. But with a small pool a request with a large "
        "max_new_tokens waits forever, without an error, and so does every request behind it."
    ),
    how=(
        "What a request is expected to hold is bounded by its window, the tokens that it decodes "
        "between two evictions, and the pages that eviction spares, in whole pages. The reserve "
        "for the largest running request has the same bound. A request whose bound exceeds the "
        "whole pool gets a 400. Requests are admitted in stock's order. With speculative decoding "
        "stock's rule stays, because the bound counts one token a step."
    ),
    gain=(
        "Requests with a large max_new_tokens gain, if the sliding-window pool is below a few "
        "times 4096 tokens. Others gain nothing. From 0.5.14 on stock makes such a pool if "
        "--max-running-requests is small. 0.5.23, real queue on a CPU; window 128, page 64, "
        "sliding-window pool 4096:"
    ),
    figures=(
        ("admitted of 64 queued, prompts of 1000", "stock", "patched"),
        ("max_new_tokens 128", "20", "20"),
        ("max_new_tokens 3072", "5", "20"),
        ("max_new_tokens 4096", "0", "20"),
    ),
    condition=(
        "A sliding-window pool that is not much larger than max_new_tokens. It changes whom stock "
        "admits. With more requests running there may be more retractions: 76 -> 97 in a load that "
        "swa.evict-before-retract brings to 0. No request's result changes."
    ),
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
    why=(
        "Stock wants room in the sliding-window pool for the tail of a prompt and for "
        "min(max_new_tokens, 4096) more tokens, though KV behind the window is freed while a "
        "request decodes. The pool that stock makes for few running requests is smaller than that. "
        "On an idle server a request without max_tokens then waits forever, without an error, and "
        "so does every request behind it."
    ),
    how=(
        "If no request runs, waits, is in transfer or retracted, and the sliding-window pool is "
        "whole, the first request in the queue counts by what its window lets it hold: the window, "
        "the tokens decoded between two evictions, the pages that eviction spares, a token that "
        "overlap scheduling is behind, and with speculative decoding the drafted tokens. The pool "
        "must also hold the tails of as many other requests as the server has rows for, because "
        "stock can't retract what is in transfer. The pool that stock makes from 0.5.14 on with "
        "--max-running-requests mostly does. Where stock never evicts (a window of 1, up to "
        "0.5.13.post1), a request counts in full. No other admission changes. What still does not "
        "fit is left to stock's rule."
    ),
    gain=(
        "Requests that stock never answers are answered, on a decode server for few requests; "
        "nobody else gains."
    ),
    figures=(
        ("measured", "stock", "patched"),
        ("Idle decode server on one H200, 0.5.23; window 128, prompts of 1000, no max_tokens",),
        ("admitted, page 1, for 8 running requests", "0 of 3", "3 of 3"),
        ("admitted, page 64, for 5 running requests", "0 of 3", "3 of 3"),
        ("time to the first token, kernels compiled", "none in 15 s", "0.005 s"),
    ),
    worth=Worth(
        "b",
        "requests that fit an idle decode server's pool are never answered in stock",
    ),
    condition=(
        "A sliding-window pool smaller than the window plus 4096 tokens. Such requests are served "
        "one at a time; swa.window-bounded-admission, a policy, admits as many as fit."
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
    why=(
        "Stock gives the sliding-window pool 0.8 times the tokens of the full pool, whatever the "
        "window is. With a window of 128 or 1024 and a known number of running requests most of "
        "that is never used. The full pool, which decides how many tokens fit, is smaller by as "
        "much."
    ),
    how=(
        "With --max-running-requests and without --swa-full-tokens-ratio, stock's own arithmetic "
        "gets another ratio, never a larger one than stock's. With it the pool holds, for each "
        "running request, its window, what it decodes between two evictions and its pages; "
        "besides, it holds the prefill chunks in flight and one to four cached prefixes. Stock's "
        "code runs for disaggregated servers, unified memory, the hierarchical cache, pipeline "
        "parallelism, prefill that is not chunked, and models with a ratio of their own. Up to "
        "0.5.21 an explicit 0.8 can't be told from the default."
    ),
    gain=(
        "More tokens fit into the same memory: 1.4 times on gpt-oss' shape, 2.9 times with windows "
        "of 1024 in 5 of 6 layers. With the latter a server that KV limits gained throughput, and "
        "conversations found their KV again; with gpt-oss' throughput was the same. One H200, "
        "0.5.23, small models of these shapes, the same bytes for KV:"
    ),
    figures=(
        ("measured", "stock", "patched"),
        ("window 1024, 5 of 6 layers; 64 prompts of 16000, two runs",),
        ("tokens that fit", "209715", "618326"),
        ("most requests in a batch", "12", "32"),
        ("output tokens a second", "2427, 2316", "2758, 3100"),
        ("24 of the conversations go on, seconds", "2.41", "0.27"),
        ("gpt-oss' shape: window 128, every other layer; 256 prompts of 4000, second run",),
        ("tokens that fit", "291271", "409469"),
        ("most requests in a batch", "66", "93"),
        ("output tokens a second", "9192", "9111"),
    ),
    condition=(
        "Long contexts on a model that has a window pool, such as gpt-oss, Llama 4, Gemma 4, "
        "MiMo-V2 or Step 3.5. Gemma 2 and Gemma 3 have none: stock turns it off for them. With "
        "short contexts the windows of the running requests are a larger share, "
        "and fewer cached prefixes keep their window. It changes how many requests and cached "
        "prefixes fit, never a request's result."
    ),
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
    why=(
        "If the next decode step does not fit, stock retracts running requests: their KV goes to "
        "CPU memory or is computed again. Yet it frees sliding-window KV behind the window only at "
        "intervals, so each running request may hold an interval and a page that nothing will read."
    ),
    how=(
        "Only if the step does not fit, the patch evicts each running request up to its window "
        "with stock's own method, under stock's own guard (a decode step behind it), and checks "
        "again. Stock's code alone runs with a prefix cache, without a window, and with other "
        "allocators."
    ),
    gain=(
        "Servers with a small sliding-window pool stop retracting. The pool that stock makes from "
        "0.5.14 on with --max-running-requests and without the prefix cache is large enough for "
        "every running request, so it gains nothing. 0.5.23, real queue and allocator on a CPU, "
        "this policy alone; at page 1 with swa.page-size-1 on both sides:"
    ),
    figures=(
        ("64 requests of 1000 + 400 tokens, window 128", "stock", "patched"),
        ("retractions, page 64, pool 8192", "76", "0"),
        ("tokens per step, page 64, pool 8192", "30.5", "31.8"),
        ("retractions, page 1, pool 6000", "184", "0"),
        ("tokens per step, page 1, pool 6000", "25.8", "31.8"),
    ),
    condition=(
        "Small windows, and a sliding-window pool that runs out while requests decode. It changes "
        "whom stock retracts, never a request's result."
    ),
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
