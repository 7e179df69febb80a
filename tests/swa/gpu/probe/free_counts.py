"""In a server's scheduler: what PyTorch says waits for the GPU while windows are evicted.

While the file ``$SWA_FREE_PROBE.count`` is there, each step that evicts and each end of a request
runs with ``torch.cuda.set_sync_debug_mode("warn")``. The warnings are counted by whether the step
gave anything back, and written to the file that $SWA_FREE_PROBE names.
"""

import json
import os
import time
import warnings

import wrapt

_TARGET = os.environ.get("SWA_FREE_PROBE")
_seen = {
    "steps_that_evict": 0,
    "syncs_in_them": 0,
    "most_syncs_in_a_step": 0,
    "seconds_in_them": 0.0,
    "requests_ended": 0,
    "syncs_at_their_end": 0,
    "where": {},
}


def watch():
    """Wrap both functions in the module that calls them."""
    wrapt.register_post_import_hook(_hook, "sglang.srt.managers.schedule_batch")


def _counted(wrapped, args, kwargs):
    import torch

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        began = time.perf_counter()
        try:
            result = wrapped(*args, **kwargs)
        finally:
            seconds = time.perf_counter() - began
            torch.cuda.set_sync_debug_mode("default")
    syncs = [entry for entry in told if "synchroniz" in str(entry.message)]
    for entry in syncs:
        place = f"{entry.filename.rsplit('/', 2)[-1]}:{entry.lineno}"
        _seen["where"][place] = _seen["where"].get(place, 0) + 1
    return result, len(syncs), seconds


def _write():
    with open(f"{_TARGET}.part", "w") as file:
        json.dump(_seen, file)
    os.replace(f"{_TARGET}.part", _TARGET)


def _hook(module):
    def evict(wrapped, instance, args, kwargs):
        if not os.path.exists(f"{_TARGET}.count"):
            return wrapped(*args, **kwargs)
        allocator = instance.token_to_kv_pool_allocator
        before = allocator.swa_available_size()
        result, syncs, seconds = _counted(wrapped, args, kwargs)
        if allocator.swa_available_size() > before:
            _seen["steps_that_evict"] += 1
            _seen["syncs_in_them"] += syncs
            _seen["most_syncs_in_a_step"] = max(_seen["most_syncs_in_a_step"], syncs)
            _seen["seconds_in_them"] += seconds
            _write()
        return result

    wrapt.wrap_function_wrapper(module, "ScheduleBatch.maybe_evict_swa", evict)

    def group_end(wrapped, instance, args, kwargs):
        if not os.path.exists(f"{_TARGET}.count"):
            return wrapped(*args, **kwargs)
        before = instance.swa_available_size()
        result, syncs, _ = _counted(wrapped, args, kwargs)
        if instance.swa_available_size() > before:
            _seen["requests_ended"] += 1
            _seen["syncs_at_their_end"] += syncs
            _write()
        return result

    import importlib

    pool = importlib.import_module("sglang.srt.mem_cache.swa_memory_pool")
    if not hasattr(pool, "SWATokenToKVPoolAllocator"):
        pool = importlib.import_module("sglang.srt.mem_cache.allocator.swa")
    wrapt.wrap_function_wrapper(pool, "SWATokenToKVPoolAllocator.free_group_end", group_end)
