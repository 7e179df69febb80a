"""Inside a patched server: while a file $SWITCH_FOLDER/PATCH exists, that patch is off.

Each function or property that a patch of $SWITCH_PATCHES puts in place of stock's asks for the file
at each call. So it is for patches that keep nothing between calls. ``mla.draft-extend-graph`` keeps
a graph: where it is off, the runner declines each batch, and stock's eager code runs. This file
shadows ``tests/harness/probe``: it needs that folder too, and does what that does.
"""

import functools
import os
from types import FunctionType

import dummy_weights
import wrapt

_PATCHES = set(filter(None, os.environ.get("SWITCH_PATCHES", "").split(",")))
_FOLDER = os.environ.get("SWITCH_FOLDER", "")
_GRAPH = "mla.draft-extend-graph"


def _switched(patch, ours, stock):
    file = os.path.join(_FOLDER, patch)
    exists = os.path.exists
    if isinstance(ours, property) and isinstance(stock, property):
        return property(lambda self: (stock if exists(file) else ours).fget(self))
    if not isinstance(ours, FunctionType):
        return ours

    @functools.wraps(ours)
    def either(*given, **named):
        return (stock if exists(file) else ours)(*given, **named)

    return either


def _override(wrapped, patching, args, kwargs):
    reference, make = args
    patch = patching._patch
    if patch not in _PATCHES or patch == _GRAPH or reference.endswith(".__init__"):
        return wrapped(reference, make)
    return wrapped(reference, lambda stock: _switched(patch, make(stock), stock))


def _hook(module):
    wrapt.wrap_function_wrapper(module, "Patching.override", _override)


def _decline(module):
    kind = module.EAGLEDraftExtendCudaGraphRunner
    name = "can_run_graph" if "can_run_graph" in vars(kind) else "can_run"
    file = os.path.join(_FOLDER, _GRAPH)

    def can(wrapped, _, args, kwargs):
        return False if os.path.exists(file) else wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(kind, name, can)


if os.environ.get("DUMMY_WEIGHTS"):
    dummy_weights.enlarge()
if _PATCHES:
    wrapt.register_post_import_hook(_hook, "sglang_perf_patches.live.patching")
if _GRAPH in _PATCHES:
    wrapt.register_post_import_hook(
        _decline, "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner"
    )
