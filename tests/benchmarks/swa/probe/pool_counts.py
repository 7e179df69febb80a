"""In an ordinary server's scheduler: a fixed KV budget in bytes, and what its batches hold.

$SWA_POOL_BYTES is the budget, whatever the GPU has free; without it, stock decides. The counts go
to the file that $SWA_POOL_PROBE names, four times a second.
"""

import json
import os
import time

import wrapt

_CONFIGURATORS = (
    ("sglang.srt.mem_cache.kv_cache_configurator", "KVCacheConfigurator"),
    ("sglang.srt.model_executor.model_runner_kv_cache_mixin", "ModelRunnerKVCacheMixin"),
)
_TARGET = os.environ.get("SWA_POOL_PROBE")
_seen = {"steps": 0, "peak_running": 0, "sum_running": 0, "retracted": 0}
_told = [0.0]


def watch():
    """Wrap what the release uses to profile memory, and what every decode step calls."""
    wrapt.register_post_import_hook(_batches, "sglang.srt.managers.schedule_batch")
    for module, owner in _CONFIGURATORS if os.environ.get("SWA_POOL_BYTES") else ():
        wrapt.register_post_import_hook(_budget(owner), module)


def _budget(owner):
    def hook(module):
        if hasattr(getattr(module, owner, None), "_profile_available_bytes"):
            wrapt.wrap_function_wrapper(
                module,
                f"{owner}._profile_available_bytes",
                lambda wrapped, instance, args, kwargs: int(os.environ["SWA_POOL_BYTES"]),
            )

    return hook


def _batches(module):
    def step(wrapped, instance, args, kwargs):
        if os.path.exists(f"{_TARGET}.reset"):
            os.remove(f"{_TARGET}.reset")
            _seen.update(steps=0, peak_running=0, sum_running=0, retracted=0)
            _seen.pop("least_swa_free", None)
        allocator = instance.token_to_kv_pool_allocator
        _seen["steps"] += 1
        _seen["sum_running"] += len(instance.reqs)
        _seen["peak_running"] = max(_seen["peak_running"], len(instance.reqs))
        if hasattr(allocator, "swa_available_size"):
            free = allocator.swa_available_size()
            _seen["least_swa_free"] = min(_seen.get("least_swa_free", free), free)
        if time.monotonic() - _told[0] > 0.25:
            _told[0] = time.monotonic()
            now = {"full_size": getattr(allocator, "size_full", None) or allocator.size}
            now["swa_size"] = getattr(allocator, "size_swa", None)
            with open(f"{_TARGET}.part", "w") as file:
                json.dump({**_seen, **now}, file)
            os.replace(f"{_TARGET}.part", _TARGET)
        return wrapped(*args, **kwargs)

    def retract(wrapped, instance, args, kwargs):
        result = wrapped(*args, **kwargs)
        _seen["retracted"] += len(result[0])
        return result

    wrapt.wrap_function_wrapper(module, "ScheduleBatch.prepare_for_decode", step)
    wrapt.wrap_function_wrapper(module, "ScheduleBatch.retract_decode", retract)
