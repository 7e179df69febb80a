"""When the steps of a request happen in each process of a server, for ``timeline.py``.

Lines ``NANOSECONDS PROCESS STEP>`` and ``…<`` go to the file that $MARKS names, by the monotonic
clock, while a file beside it with the suffix ``.on`` exists.
"""

import atexit
import os
import time

import wrapt

_FILE = os.environ.get("MARKS", "")
_LOOK_NS = 20_000_000
_STEPS = {
    "sglang.srt.managers.tokenizer_manager": {
        "TokenizerManager": ("_send_one_request", "_handle_batch_output"),
    },
    "sglang.srt.managers.scheduler": {
        "Scheduler": ("process_input_requests", "get_next_batch_to_run", "run_batch"),
    },
    "sglang.srt.managers.schedule_batch": {
        "ScheduleBatch": ("prepare_for_extend", "prepare_for_decode"),
    },
    "sglang.srt.model_executor.model_runner": {"ModelRunner": ("forward", "sample")},
    "sglang.srt.layers.attention.flashattention_backend": {
        "FlashAttentionBackend": ("init_forward_metadata",),
    },
    "sglang.srt.managers.scheduler_components.output_streamer": {
        "SchedulerOutputStreamer": ("stream_output",),
        "OutputStreamer": ("stream_output",),
    },
}

_WORKED = {
    "process_input_requests": lambda args, result: bool(args[0]),
    "get_next_batch_to_run": lambda args, plan: getattr(plan, "batch_to_run", plan) is not None,
}
"""Whether a step that the scheduler takes in each round of its loop had anything to do."""


class _Marks:
    """What this process has to say: kept, and written by the hundred."""

    def __init__(self):
        self._lines = []
        self._looked = 0
        self._on = False

    def on(self):
        now = time.monotonic_ns()
        if now - self._looked > _LOOK_NS:
            self._looked, self._on = now, os.path.exists(f"{_FILE}.on")
            if not self._on:
                self.write()
        return self._on

    def add(self, step, at=None):
        self._lines.append(f"{at or time.monotonic_ns()} {os.getpid()} {step}\n")
        if len(self._lines) > 400:
            self.write()

    def write(self):
        if self._lines:
            with open(_FILE, "a", encoding="ascii") as file:
                file.write("".join(self._lines))
            self._lines = []


_MARKS = _Marks()


def watch():
    """Mark the steps of modules once they are imported."""
    for module in _STEPS:
        wrapt.register_post_import_hook(_mark_all, module)
    atexit.register(_MARKS.write)


def _mark_all(module):
    for owner, steps in _STEPS[module.__name__].items():
        for step in steps:
            if hasattr(getattr(module, owner, None), step):
                _mark(getattr(module, owner), step)
    if hasattr(module, "Scheduler"):
        _mark_wait(module.Scheduler)


def _mark(owner, step):
    stock = getattr(owner, step)

    def marked(self, *args, **kwargs):
        if not _MARKS.on():
            return stock(self, *args, **kwargs)
        began = time.monotonic_ns()
        result = stock(self, *args, **kwargs)
        if step not in _WORKED or _WORKED[step](args, result):
            _MARKS.add(f"{step}>", began)
            _MARKS.add(f"{step}<")
        return result

    setattr(owner, step, marked)


def _mark_wait(scheduler):
    """Wait for a result where its processing would: how long the host is ahead of the GPU."""
    stock = scheduler.process_batch_result

    def process_batch_result(self, batch, result, *args, **kwargs):
        if not _MARKS.on():
            return stock(self, batch, result, *args, **kwargs)
        copied = getattr(result, "copy_done", None)
        _MARKS.add("wait>")
        if copied is not None:
            copied.synchronize()
        _MARKS.add("wait<")
        _MARKS.add("process_batch_result>")
        try:
            return stock(self, batch, result, *args, **kwargs)
        finally:
            _MARKS.add("process_batch_result<")

    scheduler.process_batch_result = process_batch_result
