"""``swa.tail-prealloc``."""

from ....model.patch import Marker, Patch, Variant, Worth, of, variant
from ..proven import DECODING, RANKS, TREES
from ..references import (
    ALLOCATOR,
    BATCH,
    COMMON,
    DECODE,
    EVICTS,
    OLD_ALLOCATOR,
    OLD_POOL,
    QUEUE,
    REQUEST,
)

_OLD_PARTS = "sglang.srt.mem_cache.allocator"
_PRICE = f"{QUEUE}._prealloc_required_tokens"
_PRICE_DEPENDS = (
    *of(QUEUE, "_uses_swa_tail_prealloc", "_swa_tail_len", "_prealloc_kv_lens"),
    *of(QUEUE, "_swa_tail_allocatable_token_budget", "pop_preallocated", "resume_retracted_reqs"),
)


def _fixes(spans: str, install: str, note: str, *targets: str) -> Variant:
    """Stock has the change itself, but not all fixes of it."""
    return variant(
        *(__name__, spans, install),
        targets=(*targets, f"{QUEUE}._pre_alloc", _PRICE),
        depends=(
            *_PRICE_DEPENDS,
            f"{BATCH}._evict_swa",
            f"{REQUEST}.reset_for_retract",
            f"{COMMON}:release_kv_cache",
            f"{OLD_ALLOCATOR}.alloc_extend_swa_tail",
            f"{ALLOCATOR}.alloc_extend_swa_tail",
        ),
        note=note,
    )


PATCH = Patch(
    id="swa.tail-prealloc",
    only_with=("window-pool", "decode-server"),
    gain_with="pages",
    proven_with=DECODING | RANKS | TREES,
    summary="a request in KV transfer reserves sliding-window KV for its window only",
    worth=Worth("c", "sgl-project/sglang#24857"),
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
        variant(
            *(__name__, "0.5.9 … 0.5.11"),
            not_with=("pipeline",),
            only_with=("drafts-of-one",),
            targets=(
                *of(QUEUE, "__init__", "_check_if_req_exceed_kv_capacity", "_allocatable_tokens"),
                *of(QUEUE, "_pre_alloc", "pop_preallocated", "resume_retracted_reqs"),
                f"{OLD_ALLOCATOR}.free_swa",
                *of(f"{OLD_POOL}:SWAKVPool", "get_cpu_copy", "load_cpu_copy"),
            ),
            adds=(
                *of(QUEUE, "_uses_swa_tail_prealloc", "_swa_peak_tokens"),
                f"{OLD_ALLOCATOR}.alloc_extend_swa_tail",
            ),
            depends=(
                f"{DECODE}:CLIP_MAX_NEW_TOKEN",
                f"{DECODE}:DecodeRequest",
                *of(QUEUE, "add", "_update_handshake_waiters", "_resolve_pending_reqs"),
                *of(OLD_ALLOCATOR, "__init__", "alloc", "alloc_extend", "alloc_decode"),
                *of(OLD_ALLOCATOR, "available_size", "full_available_size", "swa_available_size"),
                *of(OLD_ALLOCATOR, "free", "clear", "get_cpu_copy", "load_cpu_copy"),
                *of(f"{_OLD_PARTS}:PagedTokenToKVPoolAllocator", "alloc_extend", "free"),
                *of(f"{_OLD_PARTS}:TokenToKVPoolAllocator", "alloc", "free", "available_size"),
                f"{_OLD_PARTS}:BaseTokenToKVPoolAllocator.available_size",
                "sglang.srt.mem_cache.memory_pool:MHATokenToKVPool.get_cpu_copy",
                "sglang.srt.mem_cache.memory_pool:MHATokenToKVPool.load_cpu_copy",
                *EVICTS,
                f"{BATCH}.release_req",
                *of(REQUEST, "offload_kv_cache", "load_kv_cache", "reset_for_retract"),
                "sglang.srt.mem_cache.chunk_cache:SWAChunkCache",
                "sglang.srt.mem_cache.chunk_cache:ChunkCache",
                f"{COMMON}:release_kv_cache",
                "sglang.srt.disaggregation.utils:prepare_abort",
            ),
        ),
        _fixes(
            "0.5.12",
            "install_all_fixes",
            "Adds the fixes #25805, #27779, #28085 and #33794.",
            *of(OLD_ALLOCATOR, "alloc_extend_swa_tail", "free_swa"),
        ),
        _fixes(
            "0.5.12.post1",
            "install_fixes",
            "Adds the fixes #27779, #28085 and #33794.",
            f"{OLD_ALLOCATOR}.free_swa",
        ),
        _fixes(
            "0.5.13 … 0.5.13.post1",
            "install_fixes_moved",
            "Adds the fixes #27779, #28085 and #33794.",
            f"{ALLOCATOR}.free_swa",
        ),
        variant(
            *(__name__, "0.5.14 … 0.5.17", "install_page_price"),
            targets=(_PRICE,),
            depends=_PRICE_DEPENDS,
            note="Adds the fix #33794.",
        ),
    ),
)
