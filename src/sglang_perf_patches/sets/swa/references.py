"""References to stock's definitions that several patches of this set name."""

from ...model.patch import of

DECODE = "sglang.srt.disaggregation.decode"
QUEUE = f"{DECODE}:DecodePreallocQueue"

OLD_POOL = "sglang.srt.mem_cache.swa_memory_pool"
OLD_ALLOCATOR = f"{OLD_POOL}:SWATokenToKVPoolAllocator"
"""The allocator of both pools, up to 0.5.12.post1."""

ALLOCATOR = "sglang.srt.mem_cache.allocator.swa:SWATokenToKVPoolAllocator"
"""The same allocator, from 0.5.13 on."""

SCHEDULE = "sglang.srt.managers.schedule_batch"
BATCH = f"{SCHEDULE}:ScheduleBatch"
REQUEST = f"{SCHEDULE}:Req"
COMMON = "sglang.srt.mem_cache.common"
EVICT_WINDOWS = "sglang.srt.mem_cache.base_prefix_cache:BasePrefixCache.evict_sliding_windows"

ADMITTED = (f"{QUEUE}._pre_alloc",)
"""What a decode server has that admits requests before their KV arrives."""

EVICTS = of(BATCH, "maybe_evict_swa", "_evict_swa")
"""What frees the KV behind a running request's window."""

STOCK_RULE = (
    *of(QUEUE, "_uses_swa_tail_prealloc", "_swa_tail_len", "_swa_aware_allocatable_token_budgets"),
    *of(QUEUE, "_swa_tail_allocatable_token_budget", "pop_preallocated", "resume_retracted_reqs"),
)
"""How stock reserves windows, from 0.5.12 on."""
