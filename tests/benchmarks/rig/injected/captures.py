"""CAPTURES=1: what each capture of a breakable graph takes of the boot and of the GPU's memory.

A line for each: graphs between breaks, seconds since the last capture and of this one, then MiB
that PyTorch holds and that the process holds at its end. Warm-ups are in the first of the times.
"""

import json
import os
import time

import wrapt

_MODULE = "sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph.breakable_cuda_graph"
_ended = time.monotonic()


def watch():
    if os.environ.get("CAPTURES"):
        wrapt.register_post_import_hook(_hook, _MODULE)


def _hook(module):
    def began(wrapped, capture, args, kwargs):
        capture.rig_began = time.monotonic()
        return wrapped(*args, **kwargs)

    def ended(wrapped, capture, args, kwargs):
        global _ended
        import torch

        result, now = wrapped(*args, **kwargs), time.monotonic()
        line = {
            "graphs": len(capture.cuda_graph._segments),
            "before s": round(capture.rig_began - _ended, 3),
            "capture s": round(now - capture.rig_began, 3),
            "torch MiB": torch.cuda.memory_reserved() >> 20,
            "process MiB": _process() >> 20,
        }
        print("CAPTURED", json.dumps(line), flush=True)
        _ended = time.monotonic()
        return result

    wrapt.wrap_function_wrapper(module, "BreakableCUDAGraphCapture.__enter__", began)
    wrapt.wrap_function_wrapper(module, "BreakableCUDAGraphCapture.__exit__", ended)


def _process():
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    return sum(each.usedGpuMemory or 0 for each in running if each.pid == os.getpid())
