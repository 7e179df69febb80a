"""Sliding-window KV: in disaggregated decode, and on ordinary servers."""

from ...model import releases
from ...model.patch import Marker, Patch, Variant

SUMMARY = "sliding-window KV: reserved at full length, freed with waits, in a pool of a fixed ratio"

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
    summary="a request in transfer holds sliding-window KV for its window, not for its prompt",
    why=(
        "A decode server allocates the KV of a request before the prefill server sends it. Stock "
        "up to 0.5.11 allocates as much sliding-window KV as the prompt is long, although only "
        "the window is sent and read: the smaller pool limits how many requests are in transfer, "
        "and refuses prompts longer than itself. Stock 0.5.12 allocates the window alone, with "
        "faults that later releases mend: on 0.5.12 two live requests can own one slot; up to "
        "0.5.13.post1 slots behind a sequence's end stay mapped, what is not there is not "
        "recorded as evicted, and 512 tokens more are reserved for each request; up to 0.5.17 "
        "requests are priced in tokens and allocated in pages, so from 0.5.14 on, where that "
        "reserve is gone, the scheduler can end with 'KV cache is full'."
    ),
    how=(
        "Before 0.5.12: allocation gives sliding-window slots to the pages that hold the last "
        "window of tokens; the two pools have budgets of their own; requests are admitted first "
        "come, first served, as far as both last, by stock's own code; a retracted request's "
        "copy in CPU memory holds what is mapped. A request that can't fit even in empty pools "
        "is answered with a 400. From 0.5.12 to 0.5.17: the mends that the release lacks. Stock's "
        "code runs for a model without a window, other allocators or pools, hisparse, the decode "
        "radix cache, decode KV offload, pipeline parallelism, data parallelism with a draft "
        "model, and at page size 1, for which there is swa.page-size-1."
    ),
    gain=(
        "Window 4096, page 64, sliding-window pool 262144, full pool 4M, 64 requests queued, "
        "0.5.9 to 0.5.11, real queue on a CPU: admitted 30 -> 63 at prompts of 8k, 7 -> 63 at "
        "32k, 1 -> 31 at 128k, where the full pool is the limit. A real decode server on one H200, "
        "0.5.11, window 127, page 64, pool 65536, a burst of 64 requests: median time to the first "
        "token 3.42 -> 1.66 s at 8k and 1.19 -> 0.81 s at 32k, last one 4.14 -> 1.66 and 3.32 -> "
        "0.81 s."
    ),
    condition=(
        "Prompts longer than the window, and a sliding-window pool that is the scarcer: with r "
        "its size over the full pool's, the gain in requests is at most min(1/r, prompt/window), "
        "so at the default r = 0.8 at most 1.25. These are requests waiting for their transfer; "
        "upstream measured 1 % of throughput and 4 % of time to first token. Up to 0.5.10.post1 "
        "a prompt longer than the sliding-window pool is still refused where it arrives: stock "
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
            note="The mends #25805, #27779, #28085 and #33794.",
        ),
        Variant(
            releases=("0.5.12.post1",),
            install=f"{_TAIL}:install_fixes",
            targets=(f"{_OLD_ALLOCATOR}.free_swa", f"{_QUEUE}._pre_alloc", _PRICE),
            depends=(*_FIX_DEPENDS, f"{_OLD_ALLOCATOR}.alloc_extend_swa_tail"),
            note="The mends #27779, #28085 and #33794.",
        ),
        Variant(
            releases=releases.between("0.5.13", "0.5.13.post1"),
            install=f"{_TAIL}:install_fixes_moved",
            targets=(f"{_NEW_ALLOCATOR}.free_swa", f"{_QUEUE}._pre_alloc", _PRICE),
            depends=(*_FIX_DEPENDS, f"{_NEW_ALLOCATOR}.alloc_extend_swa_tail"),
            note="The mends #27779, #28085 and #33794.",
        ),
        Variant(
            releases=releases.between("0.5.14", "0.5.17"),
            install=f"{_TAIL}:install_page_price",
            targets=(_PRICE,),
            depends=_PRICE_DEPENDS,
            note="The mend #33794.",
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
    "__init__",
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
_EVICTED = (  # what reads how far a request is evicted, or copies what is mapped
    f"{_BATCH}:ScheduleBatch._evict_swa",
    f"{_BATCH}:Req.reset_for_retract",
    "sglang.srt.mem_cache.common:release_kv_cache",
    *_of(f"{_OLD_POOL}:SWAKVPool", "get_cpu_copy", "load_cpu_copy"),
)


def _in_function(first: str, last: str, *more: str) -> Variant:
    """swa.page-size-1 from 0.5.16 on: one body, and what some releases have besides."""
    return Variant(
        releases=releases.between(first, last),
        install=f"{_UNPAGED}:install_in_function",
        targets=(_GATE, f"{_DECODE}:alloc_for_decode_prealloc"),
        depends=(
            *_STOCK_RULE,
            f"{_QUEUE}._pre_alloc",
            *_of(_NEW_ALLOCATOR, *_ALLOCATES),
            *_EVICTED,
            *more,
        ),
    )


_SEGMENTS = (
    "sglang.srt.mem_cache.common:free_kv_row_segments",
    *_of(_NEW_ALLOCATOR, "free_swa_segment", "free_full_segment"),
)

PAGE_SIZE_1 = Patch(
    id="swa.page-size-1",
    summary="swa.tail-prealloc at page size 1, where upstream leaves it off",
    why=(
        "Upstream's change asks for a page size above 1 and is silently off otherwise. 1 is "
        "CUDA's default, unless an attention backend asks for another, and so it is in the "
        "newest release: each request in transfer holds sliding-window KV for its whole prompt, "
        "and a prompt longer than that pool is refused."
    ),
    how=(
        "The condition holds at page size 1 too, and allocation there gives sliding-window slots "
        "to the last window of tokens. Budgets, admission and eviction are stock's own, or those "
        "of swa.tail-prealloc. At other page sizes, and in the situations that "
        "swa.tail-prealloc leaves alone, stock's code runs; from 0.5.12 on, where admission is "
        "stock's own, pipeline parallelism and data parallelism with a draft model are served."
    ),
    gain=(
        "A decode server whose sliding-window pool is what limits it gains; one that waits for "
        "its prefill server does not: over a real transfer on 0.5.23, 64 prompts of 1 to 2400 "
        "tokens, 62 in transfer at once instead of 13, and the median time to the first token 1.25 "
        "s on both sides. Window 128, page size 1, sliding-window pool 65536, full pool 1M, 64 "
        "requests queued, 0.5.23, real queue on a CPU: admitted 7 -> 64 at prompts of 8k, 1 -> 31 "
        "at 32k, and at 128k 0 (all refused) -> 7. 64 requests of 1000 + 400 tokens, with the pool "
        "of 16512 that stock makes for them, decode 21.0 -> 63.7 tokens per step. A real decode "
        "server of 0.5.17 on one H200, "
        "sliding-window pool 16448, 64 prompts at once: in flight 2 -> 64 at 8k and the last first "
        "token after 73.5 s -> 1.0 s; prompts of 32k are all refused by stock and all served."
    ),
    condition=(
        "Page size 1, prompts longer than the window, and a sliding-window pool that is the "
        "scarcer: see swa.tail-prealloc."
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
            targets=(_GATE, f"{_QUEUE}._pre_alloc"),
            depends=(*_STOCK_RULE, *_of(_OLD_ALLOCATOR, *_ALLOCATES), *_EVICTED),
        ),
        Variant(
            releases=_FIRST_WITH_ALLOCATOR_MODULE,
            install=f"{_UNPAGED}:install_in_queue",
            targets=(_GATE, f"{_QUEUE}._pre_alloc"),
            depends=(*_STOCK_RULE, *_of(_NEW_ALLOCATOR, *_ALLOCATES), *_EVICTED),
        ),
        _in_function("0.5.16", "0.5.18"),
        _in_function("0.5.19", "0.5.19", "sglang.srt.mem_cache.common:free_kv_row_segments"),
        _in_function("0.5.20", "0.5.20", *_SEGMENTS),
        _in_function(
            *("0.5.21", "0.5.23", *_SEGMENTS),
            *_of(_QUEUE, "_alloc_for_decode_prealloc", "_uses_swa_reservation"),
            "sglang.srt.mem_cache.base_prefix_cache:BasePrefixCache.evict_sliding_windows",
        ),
    ),
)

_BOUNDED = f"{_SETS}.window_bounded_admission"

WINDOW_BOUNDED_ADMISSION = Patch(
    id="swa.window-bounded-admission",
    kind="policy",
    summary="admission expects of a request what its window lets it grow to",
    why=(
        "Stock admits a request when the sliding-window pool has room for the tail of its prompt "
        "and min(max_new_tokens, 4096) tokens more. KV behind the window is given back while a "
        "request decodes, so none ever holds that much; but with a small pool a request with a "
        "large max_new_tokens, and every request behind it, waits for ever, without an error."
    ),
    how=(
        "What a request is expected to hold is bounded by its window, the tokens that it decodes "
        "between two evictions, and the pages that eviction spares, in whole pages; so is what is "
        "kept for the largest running request. A request whose bound is beyond the whole pool is "
        "answered with a 400. Requests are admitted in stock's order. With speculative decoding "
        "stock's rule stays: the bound counts one token a step."
    ),
    gain=(
        "Requests with a large max_new_tokens, where the sliding-window pool is below a few times "
        "4096 tokens; others gain nothing. From 0.5.14 on stock makes such a pool where "
        "--max-running-requests is small. "
        "Window 128, page 64, sliding-window pool 4096, prompts of 1000, 64 queued, 0.5.23, real "
        "queue on a CPU: admitted with max_new_tokens 128, 3072 and 4096: 20, 5 and 0 -> 20, 20 "
        "and 20."
    ),
    condition=(
        "A sliding-window pool that is not much larger than max_new_tokens. It changes whom stock "
        "admits, and with more requests running there may be more retractions (76 -> 97 in a load "
        "that swa.evict-before-retract brings to 0); no request's result changes."
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

IDLE_ADMISSION = Patch(
    id="swa.idle-admission",
    summary="an idle server admits a request that its sliding-window pool serves",
    why=(
        "Stock wants room in the sliding-window pool for the tail of a prompt and for "
        "min(max_new_tokens, 4096) tokens more, though KV behind the window is given back while a "
        "request decodes. The pool that stock makes for few running requests is smaller than "
        "that: a request without max_tokens, and every request behind it, waits for ever on an "
        "idle server, without an error."
    ),
    how=(
        "Where no request runs, waits, is in transfer or retracted, and the sliding-window pool "
        "is whole, the first request in the queue is expected to grow to what its window lets it "
        "hold: the window, the tokens decoded between two evictions, the pages that eviction "
        "spares, and with speculative decoding the drafted tokens. No other admission changes; "
        "what still does not fit waits as in stock."
    ),
    gain=(
        "Window 128, prompts of 1000, max_new_tokens 4096 or none given, on an idle server with "
        "the pool that stock makes for --max-running-requests 8 at page 1 (2056 tokens): stock "
        "never answers, patched admits the first and the others one after the other."
    ),
    condition=(
        "A sliding-window pool smaller than the window and 4096 tokens. Such requests are served "
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
            depends=(*_ANCHORS, *_of(f"{_BATCH}:ScheduleBatch", "maybe_evict_swa", "_evict_swa")),
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
                *_of(f"{_BATCH}:ScheduleBatch", "maybe_evict_swa", "_evict_swa"),
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
    kind="policy",
    summary="the sliding-window pool is sized by running requests and window",
    why=(
        "Stock gives the sliding-window pool 0.8 times the tokens of the full pool, whatever the "
        "window is. With a window of 128 or 1024 and a known number of running requests most of "
        "that is never used, and the full pool, which decides how many tokens fit, is as much "
        "smaller."
    ),
    how=(
        "With --max-running-requests and without --swa-full-tokens-ratio, stock's own arithmetic "
        "is given the ratio that holds, for each running request, its window, what it decodes "
        "between two evictions and its pages, the prefill chunks in flight, and one to four "
        "cached prefixes; never more than stock's. Stock's code runs for disaggregated servers, "
        "unified memory, the hierarchical cache, pipeline parallelism, prefill that is not "
        "chunked, and models with a ratio of their own. Up to 0.5.21 an operator's own 0.8 can't "
        "be told from the default."
    ),
    gain="Nothing measured yet.",
    condition=(
        "Long contexts: with short ones the windows of the running requests are a larger share, "
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

_WAITLESS = f"{_SETS}.free_without_sync"
_COMMON = "sglang.srt.mem_cache.common"
_OLD_BASE = f"{_OLD_PARTS}:BaseTokenToKVPoolAllocator"


def _waitless(
    first: str, last: str, install: str, allocator: str, parts: tuple[str, ...], *more: str
) -> Variant:
    """swa.free-without-sync where requests are given back by slots: up to 0.5.18."""
    return Variant(
        releases=releases.between(first, last),
        install=f"{_WAITLESS}:{install}",
        targets=(
            *_of(allocator, "free", "free_swa"),
            f"{_BATCH}:ScheduleBatch.maybe_evict_swa",
            f"{_COMMON}:release_kv_cache",
        ),
        depends=(
            *_of(allocator, "__init__", "alloc", "alloc_extend", "alloc_decode", "clear"),
            f"{_BATCH}:ScheduleBatch._evict_swa",
            "sglang.srt.mem_cache.chunk_cache:ChunkCache.cache_finished_req",
            *_of(
                "sglang.srt.mem_cache.swa_radix_cache:SWARadixCache",
                "cache_finished_req",
                "cache_unfinished_req",
            ),
            *parts,
            *more,
        ),
    )


_OLD_FREES = (
    f"{_OLD_PARTS}:TokenToKVPoolAllocator.free",
    f"{_OLD_PARTS}:PagedTokenToKVPoolAllocator.free",
    *_of(_OLD_BASE, "free_group_begin", "free_group_end"),
)
_FREES = (
    f"{_OLD_PARTS}.token:TokenToKVPoolAllocator.free",
    f"{_OLD_PARTS}.paged:PagedTokenToKVPoolAllocator.free",
    *_of(f"{_OLD_PARTS}.base:BaseTokenToKVPoolAllocator", "free_group_begin", "free_group_end"),
)
_WINDOWS = f"{_COMMON}:free_swa_out_of_window_slots"

FREE_WITHOUT_SYNC = Patch(
    id="swa.free-without-sync",
    summary="giving back sliding-window KV does not wait for the GPU",
    why=(
        "While a request decodes, stock gives back KV behind its window, and at its end all of "
        "it. It asks the GPU which of the slots have sliding-window KV and which pages they are "
        "in, and waits for the answer, up to several times for each request of a step. Upstream "
        "mended paged allocators in 0.5.17, and the rest in 0.5.20."
    ),
    how=(
        "The slots of an eviction, and of a request that ends, are a range of its row in "
        "req_to_token: what is mapped follows from the length that the request has evicted, and "
        "its pages from its first position, both known to the host. Both pools, the mapping and "
        "the order of free pages are the same afterwards. What is no such range, as a node of the "
        "prefix cache, is given back by stock's code; so is all with another allocator or pool, "
        "and with an encoder. On 0.5.19 evictions alone."
    ),
    gain="Nothing measured yet.",
    condition=(
        "A model with a window, up to 0.5.19; where the GPU is the bottleneck, the host's wait "
        "costs nothing."
    ),
    upstream=(
        "sgl-project/sglang#32701",
        "sgl-project/sglang#37876",
        "sgl-project/sglang#38159",
    ),
    built_in_since="0.5.20",
    markers=(
        Marker(
            definition=f"{_NEW_ALLOCATOR}.free_swa_segment",
            contains="start_pos",
        ),
    ),
    anchors=(f"{_BATCH}:ScheduleBatch._evict_swa",),
    requires=("swa.tail-prealloc",),
    variants=(
        _waitless("0.5.9", "0.5.12.post1", "install_old", _OLD_ALLOCATOR, _OLD_FREES),
        _waitless("0.5.13", "0.5.13.post1", "install_moved", _NEW_ALLOCATOR, _FREES),
        _waitless(
            *("0.5.14", "0.5.15.post1", "install", _NEW_ALLOCATOR, _FREES),
            *(_WINDOWS, f"{_NEW_ALLOCATOR}._expand_to_full_pages"),
        ),
        _waitless(
            *("0.5.16", "0.5.17", "install", _NEW_ALLOCATOR, _FREES),
            *(_WINDOWS, f"{_NEW_ALLOCATOR}._expand_to_full_pages"),
            f"{_COMMON}:_release_overallocated_kv_indices",
        ),
        _waitless(
            *("0.5.18", "0.5.18", "install", _NEW_ALLOCATOR, _FREES),
            *(_WINDOWS, f"{_NEW_ALLOCATOR}._expand_to_full_pages"),
            f"{_COMMON}:_release_overallocated_kv_indices",
            *_of(_NEW_ALLOCATOR, "free_group_begin", "free_group_end"),
        ),
        Variant(
            releases=("0.5.19",),
            install=f"{_WAITLESS}:install_evictions",
            targets=(
                f"{_NEW_ALLOCATOR}.free_swa",
                f"{_BATCH}:ScheduleBatch.maybe_evict_swa",
            ),
            depends=(
                *_of(_NEW_ALLOCATOR, "__init__", "alloc", "alloc_extend", "alloc_decode", "clear"),
                *_of(_NEW_ALLOCATOR, "free_group_begin", "free_group_end"),
                f"{_NEW_ALLOCATOR}._expand_to_full_pages",
                f"{_BATCH}:ScheduleBatch._evict_swa",
                *_FREES,
                _WINDOWS,
            ),
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
    kind="policy",
    summary="KV behind the window is given back before a running request is retracted",
    why=(
        "When the next decode step does not fit, stock retracts running requests: their KV goes "
        "to CPU memory or is computed again. Yet it gives back sliding-window KV behind the "
        "window only at intervals, so each running request may hold an interval and a page that "
        "nothing will read."
    ),
    how=(
        "Only where the step does not fit: evict each running request up to its window by stock's "
        "own method, under stock's own guard (a decode step behind it), and ask again. Stock's "
        "code alone runs with a prefix cache, without a window, and with other allocators."
    ),
    gain=(
        "Nothing with the pool that stock makes from 0.5.14 on where --max-running-requests is "
        "given and the prefix cache is off, which is large enough for every running request. With "
        "a smaller one: 64 requests of 1000 + 400 tokens, window 128, 0.5.23, real queue and "
        "allocator on a CPU, this policy alone: retractions 76 -> 0 and tokens per step 30.5 -> "
        "31.8 at page 64 and a pool of 8192; 184 -> 0 and 25.8 -> 31.8 at page 1 and 6000, with "
        "swa.page-size-1 before and after. Window 4096, page 64, pool 131072: no change."
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
    FREE_WITHOUT_SYNC,
    WINDOW_BOUNDED_ADMISSION,
    EVICT_BEFORE_RETRACT,
    POOL_RATIO,
)
