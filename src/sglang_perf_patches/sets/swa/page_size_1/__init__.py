"""``swa.page-size-1``."""

from ....model.patch import Patch, Variant, Worth
from ....model.releases import between
from ..proven import PROVEN
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
    of,
)

CACHE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"

_BODY = f"{__name__}.body"
_GATE = f"{QUEUE}._uses_swa_tail_prealloc"
_ALLOCATES = ("__init__", "alloc", "free", "free_swa", "clear", "swa_available_size")
_OLD_ALLOCATES = of(OLD_ALLOCATOR, *_ALLOCATES)
_DEPENDS = (
    *(name for name in STOCK_RULE if name != _GATE),
    *of(QUEUE, "_swa_retractable_len", "_prealloc_kv_lens", "_prealloc_required_tokens"),
    *of(QUEUE, "_allocatable_token_budgets"),
    *of(ALLOCATOR, *_ALLOCATES),
    # What reads how far a request is evicted, or copies mapped slots.
    f"{BATCH}._evict_swa",
    f"{REQUEST}.reset_for_retract",
    f"{COMMON}:release_kv_cache",
    *of(f"{OLD_POOL}:SWAKVPool", "get_cpu_copy", "load_cpu_copy"),
)


def _variant(
    first: str, last: str, install: str, allocates: str, *copies: str, depends: tuple[str, ...] = ()
) -> Variant:
    """From 0.5.12 on, where stock has the rule.

    Args:
        first: the first release.
        last: the last one.
        install: a function of the body.
        allocates: what allocates a request's slots.
        copies: from 0.5.18 on, the names of what keeps retracted KV in the host's pool.
        depends: what it relies on besides.
    """
    return Variant(
        releases=between(first, last),
        install=f"{_BODY}:{install}",
        targets=(
            _GATE,
            allocates,
            *of(QUEUE, "__init__", "_check_if_req_exceed_kv_capacity"),
            *of(CACHE, *copies),
        ),
        depends=(*_DEPENDS, *depends),
    )


# From 0.5.16 on a function allocates, not the queue's method.
_IN_FUNCTION = (
    f"{QUEUE}._pre_alloc",
    f"{COMMON}:free_kv_row_segments",
    *of(ALLOCATOR, "free_swa_segment", "free_full_segment"),
)
_FUNCTION = f"{DECODE}:alloc_for_decode_prealloc"


def _copied(*names: str) -> tuple[str, ...]:
    """What stock calls to keep retracted KV."""
    return (
        *_IN_FUNCTION,
        *(f"{COMMON}:{each}" for each in ("RetractionBackup", *names)),
        *of(REQUEST, "offload_kv_cache", "load_kv_cache"),
        f"{CACHE}._retraction_device_transfers",
        *of(QUEUE, "_alloc_for_decode_prealloc", "_uses_swa_reservation"),
        EVICT_WINDOWS,
    )


_OLD_COPIES = ("retraction_backup", "retraction_restore", "retraction_discard")
_COPIES = ("backup_kv_cache", "restore_kv_cache", "discard_kv_cache_backup")

PATCH = Patch(
    id="swa.page-size-1",
    proven_with=PROVEN["swa.page-size-1"],
    summary="what swa.tail-prealloc does, at page size 1, where upstream leaves it off",
    worth=Worth(
        "a",
        "the median first token of 10 prompts on 0.5.23 comes after 0.144 s, not 0.289 s",
        "tests/swa/gpu/results.md",
        "first-10",
    ),
    anchors=ADMITTED,
    requires=("swa.tail-prealloc",),
    variants=(
        Variant(
            releases=between("0.5.9", "0.5.11"),
            install=f"{_BODY}:install",
            targets=(),
            adds=(_GATE,),
            depends=(*ADMITTED, *_OLD_ALLOCATES),
        ),
        _variant(
            *("0.5.12", "0.5.15.post1", "install_in_queue", f"{QUEUE}._pre_alloc"),
            depends=_OLD_ALLOCATES,
        ),
        _variant("0.5.16", "0.5.17", "install_in_function", _FUNCTION, depends=_IN_FUNCTION),
        _variant(
            *("0.5.18", "0.5.20", "install_with_old_copies", _FUNCTION),
            *_OLD_COPIES,
            depends=_copied(*_OLD_COPIES),
        ),
        _variant(
            *("0.5.21", "0.5.23", "install_with_copies", _FUNCTION),
            *_COPIES,
            depends=_copied(*_COPIES),
        ),
    ),
)
