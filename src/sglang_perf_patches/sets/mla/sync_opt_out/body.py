"""mla.sync-opt-out: no wait for the lengths of a verify if no backend needs them on the host.

Upstream: sgl-project/sglang#26824, made effective as #28633 did, with the guards that followed.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ..references import BASE, FORWARD_BATCH, SPECULATIVE
from . import OVERLAP, PATCH

_TRITON_KINDS = {"TritonAttnBackend", "TritonMultiStepDraftBackend"}
_KINDS = {*_TRITON_KINDS, "TRTLLMMLABackend", "TRTLLMMLAMultiStepDraftBackend"}
"""Backends that give their kernels the same numbers with and without host lengths."""

_HYBRID = "HybridAttnBackend"
_SEQ_LENS, _SEQ_LENS_SUM, _DRAFT, _BUFFER = 4, 5, 8, 10
"""Places in the call of the tree builder, whose callers pass every argument by position: prefix
lengths, their sum, tokens of a tree, and the mask to fill."""
_LENDS = "sglang_perf_patches_lends"


@PATCH.setup()
def setup(patch):
    state = patch.state
    state.equal = _KINDS
    state.without = weakref.WeakSet()
    waits_for = "no worker is left that runs without host lengths because of it"
    patch.drain(lambda: not len(state.without), waits_for)
    state.lent = None  # the last mask from a backend, and the context
    state.verifying = patch.module(FORWARD_BATCH).ForwardMode.TARGET_VERIFY


@PATCH.setup("0.5.16")
def setup_triton(patch):
    """TRT-LLM MLA gives an eager kernel other bounds without host lengths."""
    patch.state.equal = _TRITON_KINDS


@PATCH.replaces(f"{OVERLAP}:decide_needs_cpu_seq_lens")
def decide_needs_cpu_seq_lens(server_args, attn_backends, *, patch, stock):
    """Ask stock's rule again, about the backends of a step.

    Its answer changes only for backends of the classes in `equal`.
    """
    state = patch.state
    stocks = bool(stock(server_args, attn_backends))
    if not server_args.speculative_algorithm:
        return stocks
    if _has_mrope(server_args):
        patch.gate("multimodal rotary positions need the lengths on the host")
        return stocks
    patch.ran.seen = True
    if _unknown_backend(server_args, attn_backends):
        return True
    present = [backend for backend in attn_backends if backend is not None]
    needed = [each for backend in present for each in in_the_loop(backend)]
    # All that the rule reads. Up to 0.5.13.post1 stock's piecewise graphs, which are on by default,
    # keep the lengths on the host.
    asked = SimpleNamespace(
        enable_two_batch_overlap=server_args.enable_two_batch_overlap,
        speculative_algorithm=server_args.speculative_algorithm,
        disable_piecewise_cuda_graph=True,
    )
    if stock(asked, needed) or (stocks and not all(_is_of(each, state.equal) for each in needed)):
        return True
    for backend in present:
        if type(backend).__name__ == _HYBRID:
            # Stock sizes a mask by this if the batch exceeds the backend's own mask.
            backend.max_context_len = backend.model_runner.model_config.context_len
            setattr(backend, _LENDS, True)
    if stocks:
        state.without.update(present)
    return False


# A hybrid backend uses the mask of the one that it verifies with. Without host lengths a mask made
# for the batch has the size of the longest context, for which the graph's buffer has no room.


@PATCH.replaces(f"{BASE}.get_verify_buffers_to_fill_after_draft")
def get_verify_buffers_to_fill_after_draft(self, *, patch, stock):
    if not getattr(self, _LENDS, False):
        return stock(self)
    backend = self._select_backend(patch.state.verifying)
    mask, positions = backend.get_verify_buffers_to_fill_after_draft()
    patch.state.lent = None if mask is None else (weakref.ref(mask), self.max_context_len)
    return [mask, positions]


@PATCH.replaces(f"{BASE}.update_verify_buffers_to_fill_after_draft")
def update_verify_buffers_to_fill_after_draft(self, spec_info, cuda_graph_bs, *, patch, stock):
    if not getattr(self, _LENDS, False):
        return stock(self, spec_info, cuda_graph_bs)
    backend = self._select_backend(patch.state.verifying)
    return backend.update_verify_buffers_to_fill_after_draft(spec_info, cuda_graph_bs)


@PATCH.replaces(f"{SPECULATIVE}.eagle_utils:build_tree_kernel_efficient")
def build_tree_kernel_efficient(*args, patch, stock, **kwargs):
    mask, context = patch.state.lent or (lambda: None, 0)
    ours = mask()
    if ours is None or len(args) <= _BUFFER or args[_BUFFER] is not ours:
        return stock(*args, **kwargs)
    count, draft = args[_SEQ_LENS].numel(), args[_DRAFT]
    if count * draft * context <= ours.numel():
        return stock(*args, **kwargs)
    # An eager batch larger than the captured ones: build it without a buffer.
    larger = list(args)
    larger[_SEQ_LENS_SUM], larger[_BUFFER] = count * context, None
    return stock(*larger, **kwargs)


def in_the_loop(backend: Any) -> list[Any]:
    """The backends that a speculative step runs on, of a backend that may be two.

    A hybrid backend decodes with one. It verifies with the other only in attention mode
    ``prefill``; a draft worker's may also extend with it.
    """
    if type(backend).__name__ != _HYBRID:
        return [backend]
    runner = backend.model_runner
    backends = in_the_loop(backend.decode_backend)
    if runner.server_args.speculative_attention_mode != "decode" or runner.is_draft_worker:
        backends += in_the_loop(backend.prefill_backend)
    return backends


def _has_mrope(arguments: Any) -> bool:
    text = arguments.get_model_config().hf_text_config
    scaling = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None)
    return scaling is not None and "mrope_section" in scaling


def _unknown_backend(arguments: Any, backends: Sequence[Any]) -> bool:
    """Whether a step touches a backend that the worker does not name.

    A worker without a backend for draft-extend uses its runner's. Only a draft of one step has
    no backend to draft with, in slot 1.
    """
    one_step = arguments.speculative_num_steps == 1 and not arguments.enable_multi_layer_eagle
    unnamed = {slot for slot, backend in enumerate(backends) if backend is None}
    return not unnamed <= ({1} if one_step else set())


def _is_of(backend: Any, names: set[str]) -> bool:
    return any(kind.__name__ in names for kind in type(backend).__mro__)
