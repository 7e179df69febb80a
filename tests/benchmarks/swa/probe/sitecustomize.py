"""Counts what a real server's scheduler holds; every process finds it on PYTHONPATH.

Wraps what is called once a step (``DecodeTransferQueue.pop_transferred``) and where requests are
retracted, and writes what it saw to the file that $SWA_PROBE names, four times a second.

With $DUMMY_WEIGHTS set, see ``tests/harness/probe/dummy_weights.py``: its folder is needed too.
"""

import json
import os
import time

import dummy_weights
import wrapt

_TARGET = os.environ.get("SWA_PROBE")
_NONE = {"steps": 0, "peak_in_flight": 0, "peak_in_transfer": 0, "retractions": 0}
_seen = dict(_NONE)
_told = [0.0]


def _record(queue):
    scheduler = queue.scheduler
    prealloc = scheduler.disagg_decode_prealloc_queue
    allocator = prealloc.token_to_kv_pool_allocator
    running = len(scheduler.running_batch.reqs)
    waiting, moving = len(scheduler.waiting_queue), len(queue.queue)
    swa_free = allocator.swa_available_size()
    _seen["steps"] += 1
    _seen["peak_in_flight"] = max(_seen["peak_in_flight"], running + waiting + moving)
    _seen["peak_in_transfer"] = max(_seen["peak_in_transfer"], waiting + moving)
    _seen["least_swa_free"] = min(_seen.get("least_swa_free", swa_free), swa_free)
    if time.monotonic() - _told[0] < 0.25:
        return
    _told[0] = time.monotonic()
    mapping = allocator.full_to_swa_index_mapping
    idle = not (running or waiting or moving or prealloc.queue or prealloc.retracted_queue)
    now = {
        "idle": idle,
        "swa_size": allocator.size_swa,
        "swa_free": swa_free,
        "full_size": allocator.size_full,
        "full_free": allocator.full_available_size(),
        "still_mapped": int((mapping[:-1] != 0).sum()) if idle else None,
        "page_size": allocator.page_size,
        "window": scheduler.sliding_window_size,
    }
    with open(f"{_TARGET}.part", "w") as file:
        json.dump({**_seen, **now}, file)
    os.replace(f"{_TARGET}.part", _TARGET)


def _hook(module):
    def around(wrapped, instance, args, kwargs):
        if os.path.exists(f"{_TARGET}.reset"):
            os.remove(f"{_TARGET}.reset")
            _seen.clear()
            _seen.update(_NONE)
        _record(instance)
        return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(module, "DecodeTransferQueue.pop_transferred", around)


def _retractions(module):
    def retract(wrapped, instance, args, kwargs):
        result = wrapped(*args, **kwargs)
        _seen["retractions"] += len(result[0])
        return result

    wrapt.wrap_function_wrapper(module, "ScheduleBatch.retract_decode", retract)


if os.environ.get("DUMMY_WEIGHTS"):
    dummy_weights.enlarge()
if _TARGET:
    wrapt.register_post_import_hook(_hook, "sglang.srt.disaggregation.decode")
    wrapt.register_post_import_hook(_retractions, "sglang.srt.managers.schedule_batch")
if os.environ.get("SWA_POOL_PROBE"):
    import pool_counts

    pool_counts.watch()
