"""In a hybrid model's scheduler: a fixed budget for states and KV, and what its batches hold.

Every process finds it on PYTHONPATH. $STATE_BYTES is the budget, whatever the GPU has free: Engines
that boot side by side divide the same memory. The counts of decode steps go to the file that
$STATE_PROBE names, four times a second; a file of that name and ``.reset`` begins them anew.
"""

import json
import os
import time

import wrapt

_TARGET = os.environ.get("STATE_PROBE")
_NONE = {"steps": 0, "sum_running": 0, "peak_running": 0, "retracted": 0}
_seen = dict(_NONE)
_told = [0.0]


def _budget(module):
    def divided(wrapped, instance, args, kwargs):
        return wrapped(int(os.environ["STATE_BYTES"]) / 2**30)

    wrapt.wrap_function_wrapper(module, "KVCacheConfigurator._handle_max_mamba_cache", divided)


def _batches(module):
    def step(wrapped, instance, args, kwargs):
        if os.path.exists(f"{_TARGET}.reset"):
            os.remove(f"{_TARGET}.reset")
            _seen.clear()
            _seen.update(_NONE)
        running = len(instance.reqs)
        slots = instance.req_to_token_pool.mamba_allocator.available_size()
        tokens = instance.token_to_kv_pool_allocator.available_size()
        _seen["steps"] += 1
        _seen["sum_running"] += running
        _seen["peak_running"] = max(_seen["peak_running"], running)
        _seen["least_slots_free"] = min(_seen.get("least_slots_free", slots), slots)
        _seen["least_tokens_free"] = min(_seen.get("least_tokens_free", tokens), tokens)
        if time.monotonic() - _told[0] > 0.25:
            _told[0] = time.monotonic()
            with open(f"{_TARGET}.part", "w") as file:
                json.dump(_seen, file)
            os.replace(f"{_TARGET}.part", _TARGET)
        return wrapped(*args, **kwargs)

    def retract(wrapped, instance, args, kwargs):
        result = wrapped(*args, **kwargs)
        _seen["retracted"] += len(result[0])
        return result

    wrapt.wrap_function_wrapper(module, "ScheduleBatch.prepare_for_decode", step)
    wrapt.wrap_function_wrapper(module, "ScheduleBatch.retract_decode", retract)


if _TARGET:
    wrapt.register_post_import_hook(_budget, "sglang.srt.mem_cache.kv_cache_configurator")
    wrapt.register_post_import_hook(_batches, "sglang.srt.managers.schedule_batch")
