"""``swa.page-size-1``."""

from ....model.patch import Patch, Variant, Worth, of, variant
from ..proven import DECODING, RANKS, TREES
from ..references import (
    ADMITTED,
    ALLOCATOR,
    BATCH,
    COMMON,
    DECODE,
    EVICT_WINDOWS,
    OLD_ALLOCATOR,
    OLD_POOL,
    QUEUE,
    REQUEST,
    STOCK_RULE,
)

CACHE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"

_GATE = f"{QUEUE}._uses_swa_tail_prealloc"
_METHOD, _FUNCTION = f"{QUEUE}._pre_alloc", f"{DECODE}:alloc_for_decode_prealloc"
"""What allocates a request's slots: from 0.5.16 on a function, not the queue's method."""

OLD_COPIES = ("retraction_backup", "retraction_restore", "retraction_discard")
COPIES = ("backup_kv_cache", "restore_kv_cache", "discard_kv_cache_backup")
"""What keeps retracted KV in the host's pool, from 0.5.18 and from 0.5.21 on."""

_ALLOCATES = ("__init__", "alloc", "free", "free_swa", "clear", "swa_available_size")
_DEPENDS = (
    *STOCK_RULE,
    *of(QUEUE, "_swa_retractable_len", "_prealloc_kv_lens", "_prealloc_required_tokens"),
    *of(QUEUE, "_allocatable_token_budgets", "_alloc_for_decode_prealloc"),
    *(_METHOD, f"{QUEUE}._uses_swa_reservation"),
    # By the rule, these let prompts be as long as the full pool.
    *of(QUEUE, "__init__", "_check_if_req_exceed_kv_capacity"),
    *of(OLD_ALLOCATOR, *_ALLOCATES),
    *of(ALLOCATOR, *_ALLOCATES, "free_swa_segment", "free_full_segment"),
    # What reads how far a request is evicted, or copies mapped slots.
    f"{BATCH}._evict_swa",
    *of(REQUEST, "reset_for_retract", "offload_kv_cache", "load_kv_cache"),
    f"{COMMON}:release_kv_cache",
    f"{COMMON}:free_kv_row_segments",
    *of(f"{OLD_POOL}:SWAKVPool", "get_cpu_copy", "load_cpu_copy"),
    *(f"{COMMON}:{each}" for each in ("RetractionBackup", *OLD_COPIES, *COPIES)),
    f"{CACHE}._retraction_device_transfers",
    EVICT_WINDOWS,
)


def _variant(spans: str, install: str, allocates: str, *copies: str) -> Variant:
    """From 0.5.12 on, where stock has the rule; `copies` keep retracted KV."""
    return variant(
        *(__name__, spans, install),
        targets=(_GATE, allocates, *of(CACHE, *copies)),
        depends=_DEPENDS,
    )


PATCH = Patch(
    id="swa.page-size-1",
    only_with=("window-pool", "decode-server", "one-token-pages"),
    proven_with=DECODING | RANKS | TREES,
    summary="at page size 1, a request in KV transfer reserves sliding-window KV for its window "
    "only",
    worth=Worth(
        "a",
        "on 0.5.23 it cuts the median first token of 10 prompts from 0.289 s to 0.144 s",
        "tests/benchmarks/results/swa.md",
        "first-10",
    ),
    anchors=ADMITTED,
    requires=("swa.tail-prealloc",),
    variants=(
        variant(
            *(__name__, "0.5.9 … 0.5.11"),
            not_with=("pipeline",),
            only_with=("drafts-of-one",),
            targets=(),
            adds=(_GATE,),
            depends=(*ADMITTED, *of(OLD_ALLOCATOR, *_ALLOCATES)),
        ),
        _variant("0.5.12 … 0.5.15.post1", "install_in_queue", _METHOD),
        _variant("0.5.16 … 0.5.17", "install_in_function", _FUNCTION),
        _variant("0.5.18 … 0.5.20", "install_with_old_copies", _FUNCTION, *OLD_COPIES),
        _variant("0.5.21 … 0.5.23", "install_with_copies", _FUNCTION, *COPIES),
    ),
)
