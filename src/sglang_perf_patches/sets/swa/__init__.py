"""Sliding-window KV: in disaggregated decode, and on ordinary servers."""

from ...model.patch import Patch
from .eviction_heap import PATCH as EVICTION_HEAP
from .idle_admission import PATCH as IDLE_ADMISSION
from .page_size_1 import PATCH as PAGE_SIZE_1
from .pool_ratio import PATCH as POOL_RATIO
from .tail_prealloc import PATCH as TAIL_PREALLOC
from .window_metadata import PATCH as WINDOW_METADATA
from .window_pool import PATCH as WINDOW_POOL

SUMMARY = "models with sliding windows: gpt-oss, Gemma, EXAONE, Olmo; prefix caches"

PATCHES: tuple[Patch, ...] = (
    TAIL_PREALLOC,
    PAGE_SIZE_1,
    IDLE_ADMISSION,
    WINDOW_POOL,
    POOL_RATIO,
    EVICTION_HEAP,
    WINDOW_METADATA,
)
