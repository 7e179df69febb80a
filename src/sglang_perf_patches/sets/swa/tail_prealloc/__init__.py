"""A request in KV transfer reserves sliding-window KV for its window only."""

from ....model.declaration import Declaration, ports
from ....model.patch import Marker, of
from .. import references as refs
from ..proven import DECODING, RANKS, TREES

BEFORE = "… 0.5.11"
"""Releases without the change. Later ones have it, but not all of its fixes."""

TRACKS = "0.5.12 … 0.5.13.post1"
"""Releases that do not record all that the change needs."""

PRICE = f"{refs.QUEUE}._prealloc_required_tokens"
_OLD_PARTS = "sglang.srt.mem_cache.allocator"

PATCH = Declaration(
    *(__name__, "0.5.9 … 0.5.17"),
    only_with=("window-pool", "decode-server"),
    gain_with="pages",
    proven_with=DECODING | RANKS | TREES,
    worth=ports("sgl-project/sglang#24857"),
    upstream=(
        *("sgl-project/sglang#24857", "sgl-project/sglang#25805", "sgl-project/sglang#27779"),
        *("sgl-project/sglang#28085", "sgl-project/sglang#33794"),
    ),
    built_in_since="0.5.18",
    markers=(Marker(definition=PRICE, contains="ceil_align"),),
)
PATCH.on(
    BEFORE,
    not_with=("pipeline",),
    only_with=("drafts-of-one",),
    depends=(
        f"{refs.DECODE}:CLIP_MAX_NEW_TOKEN",
        f"{refs.DECODE}:DecodeRequest",
        *of(refs.QUEUE, "add", "_update_handshake_waiters", "_resolve_pending_reqs"),
        *of(refs.OLD_ALLOCATOR, "__init__", "alloc", "alloc_extend", "alloc_decode"),
        *of(refs.OLD_ALLOCATOR, "available_size", "full_available_size", "swa_available_size"),
        *of(refs.OLD_ALLOCATOR, "free", "clear", "get_cpu_copy", "load_cpu_copy"),
        *of(f"{_OLD_PARTS}:PagedTokenToKVPoolAllocator", "alloc_extend", "free"),
        *of(f"{_OLD_PARTS}:TokenToKVPoolAllocator", "alloc", "free", "available_size"),
        f"{_OLD_PARTS}:BaseTokenToKVPoolAllocator.available_size",
        *of("sglang.srt.mem_cache.memory_pool:MHATokenToKVPool", "get_cpu_copy", "load_cpu_copy"),
        *refs.EVICTS,
        f"{refs.BATCH}.release_req",
        *of(refs.REQUEST, "offload_kv_cache", "load_kv_cache", "reset_for_retract"),
        "sglang.srt.mem_cache.chunk_cache:SWAChunkCache",
        "sglang.srt.mem_cache.chunk_cache:ChunkCache",
        f"{refs.COMMON}:release_kv_cache",
        "sglang.srt.disaggregation.utils:prepare_abort",
    ),
)
PATCH.on(
    "0.5.12 …",
    depends=(
        *of(refs.QUEUE, "_uses_swa_tail_prealloc", "_swa_tail_len", "_prealloc_kv_lens"),
        *of(refs.QUEUE, "_swa_tail_allocatable_token_budget"),
        *of(refs.QUEUE, "pop_preallocated", "resume_retracted_reqs"),
    ),
)
PATCH.on(
    TRACKS,
    depends=(
        f"{refs.BATCH}._evict_swa",
        f"{refs.REQUEST}.reset_for_retract",
        f"{refs.COMMON}:release_kv_cache",
        f"{refs.OLD_ALLOCATOR}.alloc_extend_swa_tail",
        f"{refs.ALLOCATOR}.alloc_extend_swa_tail",
    ),
)
PATCH.on("0.5.12", note="Adds the fixes #25805, #27779, #28085 and #33794.")
PATCH.on("0.5.12.post1 … 0.5.13.post1", note="Adds the fixes #27779, #28085 and #33794.")
PATCH.on("0.5.14 …", note="Adds the fix #33794.")
