"""Compare each draft-extend by graph with stock's eager one, bit by bit, where $COMPARE_OUT is set.

Before the graph is replayed the same batch runs eagerly, as stock runs it. $COMPARE_OUT gets one
line of JSON, rewritten every few steps. By batch size it says how many draft-extends were compared,
in how many logits or hidden states differ in a bit, and in how many the proposed token does. It
also says what capturing the graph took.
"""

import copy
import functools
import json
import os
import time
import traceback
from collections import defaultdict

import wrapt

_OUT = os.environ.get("COMPARE_OUT", "")
_FOUND: dict = {"batches": defaultdict(lambda: [0, 0, 0, 0, 0.0])}


def _write():
    with open(_OUT, "w") as out:
        out.write(json.dumps(_FOUND) + "\n")


def _capture(wrapped, runner, args, kwargs):
    import torch

    torch.cuda.synchronize()
    before, began = torch.cuda.memory_reserved(), time.time()
    wrapped(*args, **kwargs)
    torch.cuda.synchronize()
    _FOUND["capture_mb"] = round((torch.cuda.memory_reserved() - before) / 2**20, 1)
    _FOUND["capture_s"] = round(time.time() - began, 2)
    _FOUND["sizes"] = list(runner.capture_bs)
    _write()


def _replay(wrapped, runner, args, kwargs):
    import torch

    if runner is None:  # called as a plain function, by a patch that wraps this wrapper
        runner, *args = args
        wrapped = functools.partial(wrapped, runner)
    batch = args[0]
    select = args[1] if len(args) > 1 else slice(None)
    if batch.batch_size == 0:
        return wrapped(*args, **kwargs)
    try:
        alike = copy.copy(batch)
        alike.spec_info = copy.copy(batch.spec_info)
        # As the worker prepares an eager one.
        runner.model_runner.attn_backend.init_forward_metadata(alike)
        more = {}
        if hasattr(alike, "mark_forward_metadata_ready"):
            alike.mark_forward_metadata_ready()
        else:
            more["skip_attn_backend_init"] = True
        eager = runner.model_runner.forward(alike, **more)
        eager = getattr(eager, "logits_output", eager)
        logits = eager.next_token_logits[select].clone()
        hidden = eager.hidden_states[select].clone()
    except Exception:
        _FOUND["error"] = traceback.format_exc()
        _write()
        return wrapped(*args, **kwargs)
    out = wrapped(*args, **kwargs)
    counts = _FOUND["batches"][batch.batch_size]
    counts[0] += 1
    counts[1] += not torch.equal(logits, out.next_token_logits)
    counts[2] += not torch.equal(hidden, out.hidden_states)
    counts[3] += int((logits.argmax(-1) != out.next_token_logits.argmax(-1)).any())
    counts[4] = max(counts[4], float((logits - out.next_token_logits).abs().max()))
    if sum(each[0] for each in _FOUND["batches"].values()) % 20 == 1:
        _write()
    return out


def _hook(module):
    kind = module.EAGLEDraftExtendCudaGraphRunner
    wrapt.wrap_function_wrapper(kind, "__init__", _capture)
    wrapt.wrap_function_wrapper(kind, "execute" if "execute" in vars(kind) else "replay", _replay)


def watch():
    """Compare from now on."""
    wrapt.register_post_import_hook(
        _hook, "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner"
    )
