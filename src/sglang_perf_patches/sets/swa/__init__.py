"""Sliding-window KV: in disaggregated decode, and on ordinary servers."""

from ...model.patch import Patch
from .idle_admission import PATCH as IDLE_ADMISSION
from .page_size_1 import PATCH as PAGE_SIZE_1
from .pool_ratio import PATCH as POOL_RATIO
from .tail_prealloc import PATCH as TAIL_PREALLOC
from .window_metadata import PATCH as WINDOW_METADATA
from .window_pool import PATCH as WINDOW_POOL

SUMMARY = "models with sliding windows: gpt-oss, Gemma, EXAONE, Olmo"

PATCHES: tuple[Patch, ...] = (
    TAIL_PREALLOC,
    PAGE_SIZE_1,
    IDLE_ADMISSION,
    WINDOW_POOL,
    POOL_RATIO,
    WINDOW_METADATA,
)
