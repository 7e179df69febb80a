"""Counts what a real server's scheduler holds; every process finds it on PYTHONPATH.

Wraps what is called once a step (``DecodeTransferQueue.pop_transferred``) and where requests are
retracted, and writes what it saw to the file that $SWA_PROBE names, four times a second. ``PID`` in
that name is the process's, where a server has more schedulers than one.

With $DUMMY_WEIGHTS set, see ``tests/harness/probe/dummy_weights.py``: its folder is needed too.
"""

import json
import os
import sys
import time

import dummy_weights
import wrapt

_TARGET = os.environ.get("SWA_PROBE")
_NONE = {
    "steps": 0,
    "peak_in_flight": 0,
    "peak_in_transfer": 0,
    "retractions": 0,
    "kept_in_tensors": 0,
    "tokens_in_tensors": 0,
    "aborted_retracting": 0,
}
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
    tensors = sum(req.seqlen - 1 for req in prealloc.retracted_queue if _in_tensors(req))
    _seen["tokens_in_tensors"] = max(_seen["tokens_in_tensors"], tensors)
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
        "setup": _setup(scheduler),
    }
    target = _target()
    with open(f"{target}.part", "w") as file:
        json.dump({**_seen, **now}, file)
    os.replace(f"{target}.part", target)


def _target():
    return _TARGET.replace("PID", str(os.getpid()))


def _setup(scheduler):
    """What the server has resolved, where retracted KV goes above all."""
    module = sys.modules["sglang.srt.disaggregation.decode"]
    read = getattr(module, "get_disagg", None)
    arguments = read() if read else scheduler.server_args
    pools = getattr(getattr(scheduler.tree_cache, "host_pool_group", None), "entry_map", {})
    return {
        "retraction_backup": getattr(arguments, "disaggregation_decode_retraction_backup", None),
        "cache": type(scheduler.tree_cache).__name__,
        "host_pools": {
            str(name): getattr(entry.host_pool, "size", None) for name, entry in pools.items()
        },
        "speculation": str(getattr(scheduler, "spec_algorithm", None)),
        "running": getattr(scheduler, "max_running_requests", None),
    }


def _in_tensors(req):
    """Whether a retracted request's KV lies in tensors, not in a pool of the host."""
    holder = req if hasattr(req, "retraction_backup") else getattr(req, "kv", None)
    backup = getattr(holder, "retraction_backup", None)
    return getattr(backup, "cpu_tensors", None) is not None


def _hook(module):
    def around(wrapped, instance, args, kwargs):
        if os.path.exists(f"{_target()}.reset"):
            os.remove(f"{_target()}.reset")
            _seen.clear()
            _seen.update(_NONE)
        _record(instance)
        return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(module, "DecodeTransferQueue.pop_transferred", around)


def _retractions(module):
    def retract(wrapped, instance, args, kwargs):
        result = wrapped(*args, **kwargs)
        _seen["retractions"] += len(result[0])
        _seen["kept_in_tensors"] += sum(_in_tensors(req) for req in result[0])
        _seen["aborted_retracting"] += len(result[2]) if len(result) > 2 else 0
        return result

    wrapt.wrap_function_wrapper(module, "ScheduleBatch.retract_decode", retract)


if os.environ.get("DUMMY_WEIGHTS"):
    dummy_weights.enlarge()
if _TARGET:
    wrapt.register_post_import_hook(_hook, "sglang.srt.disaggregation.decode")
    wrapt.register_post_import_hook(_retractions, "sglang.srt.managers.schedule_batch")
