"""mla.sync-opt-out: no wait for the lengths of a verify if no backend needs them on the host.

Upstream: sgl-project/sglang#26824, made effective as #28633 did, with the guards that followed.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ....model.patching import Patching, replaces
from ..references import BASE, FORWARD_BATCH
from . import BUILD_TREE, DECIDE

TRITON = ("TritonAttnBackend", "TritonMultiStepDraftBackend")
TRTLLM = ("TRTLLMMLABackend", "TRTLLMMLAMultiStepDraftBackend")
"""Backends that give their kernels the same numbers with and without host lengths."""

_HYBRID = "HybridAttnBackend"
_SEQ_LENS, _SEQ_LENS_SUM, _DRAFT, _BUFFER = 4, 5, 8, 10
"""Places in the call of the tree builder, whose callers pass every argument by position: prefix
lengths, their sum, tokens of a tree, and the mask to fill."""
_LENDS = "sglang_perf_patches_lends"


def install_piecewise(patching: Patching) -> None:
    """0.5.13 and .post1, where piecewise graphs, on by default, keep the lengths on the host."""

    def view(arguments: Any) -> Any:
        return SimpleNamespace(
            enable_two_batch_overlap=arguments.enable_two_batch_overlap,
            disable_piecewise_cuda_graph=True,
        )

    _decide(patching, TRITON + TRTLLM, view)
    _lend_masks(patching)


def install_hybrid(patching: Patching) -> None:
    """0.5.14 to 0.5.15.post1, where only the rule for hybrid backends keeps them."""
    _decide(patching, TRITON + TRTLLM)
    _lend_masks(patching)


def install_triton_hybrid(patching: Patching) -> None:
    """0.5.16: TRT-LLM MLA gives an eager kernel other bounds without host lengths."""
    _decide(patching, TRITON)
    _lend_masks(patching)


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


def _decide(patching: Patching, equal: Sequence[str], view: Any = lambda given: given) -> None:
    """Ask stock's rule again, about the backends that a step runs on.

    Stock's answer is changed only for backends of the classes in `equal`. The rule is shown a
    `view` of the server's arguments.
    """
    ran = patching.ran
    without: weakref.WeakSet[Any] = weakref.WeakSet()
    patching.drain(
        lambda: not len(without),
        "no worker is left that runs without host lengths because of it",
    )

    @replaces(patching, DECIDE)
    def decide_needs_cpu_seq_lens(
        server_args: Any, attn_backends: Sequence[Any], *, inner: Any
    ) -> bool:
        stock = bool(inner(server_args, attn_backends))
        if not server_args.speculative_algorithm:
            return stock
        if _has_mrope(server_args):
            patching.gate("multimodal rotary positions need the lengths on the host")
            return stock
        ran.seen = True
        if _unknown_backend(server_args, attn_backends):
            return True
        present = [backend for backend in attn_backends if backend is not None]
        needed = [each for backend in present for each in in_the_loop(backend)]
        if inner(view(server_args), needed):
            return True
        if stock and not all(_is_of(each, equal) for each in needed):
            return True
        for backend in present:
            if type(backend).__name__ == _HYBRID:
                # Stock sizes a mask by this if the batch exceeds the backend's own mask.
                backend.max_context_len = backend.model_runner.model_config.context_len
                setattr(backend, _LENDS, True)
        if stock:
            without.update(present)
        return False


def _unknown_backend(arguments: Any, backends: Sequence[Any]) -> bool:
    """Whether a step touches a backend that the worker does not name.

    A worker without a backend for draft-extend uses its runner's. Only a draft of one step has
    no backend to draft with.
    """
    one_step = arguments.speculative_num_steps == 1 and not arguments.enable_multi_layer_eagle
    return any(
        backend is None and not (one_step and slot == 1) for slot, backend in enumerate(backends)
    )


def _is_of(backend: Any, names: Sequence[str]) -> bool:
    return any(kind.__name__ in names for kind in type(backend).__mro__)


def _lend_masks(patching: Patching) -> None:
    """Let a hybrid backend use the mask of the one that it verifies with.

    Without host lengths a mask made for the batch has the size of the longest context, for which
    the graph's buffer has no room.
    """
    forward_mode = patching.module(FORWARD_BATCH).ForwardMode
    # The last mask from a backend, and the context.
    lent: list[tuple[weakref.ref[Any], int]] = []

    def verifying(backend: Any) -> Any:
        return backend._select_backend(forward_mode.TARGET_VERIFY)

    def make_get(inner: Any) -> Any:
        def get_verify_buffers_to_fill_after_draft(self: Any) -> list[Any]:
            if not getattr(self, _LENDS, False):
                return list(inner(self))
            backend = verifying(self)
            mask, positions = backend.get_verify_buffers_to_fill_after_draft()
            lent.clear()
            if mask is not None:
                lent.append((weakref.ref(mask), self.max_context_len))
            return [mask, positions]

        return get_verify_buffers_to_fill_after_draft

    def make_update(inner: Any) -> Any:
        def update_verify_buffers_to_fill_after_draft(
            self: Any, spec_info: Any, cuda_graph_bs: Any
        ) -> Any:
            if not getattr(self, _LENDS, False):
                return inner(self, spec_info, cuda_graph_bs)
            return verifying(self).update_verify_buffers_to_fill_after_draft(
                spec_info, cuda_graph_bs
            )

        return update_verify_buffers_to_fill_after_draft

    def make_build(inner: Any) -> Any:
        def build_tree_kernel_efficient(*args: Any, **kwargs: Any) -> Any:
            ours, context = (lent[0][0](), lent[0][1]) if lent else (None, 0)
            if ours is None or len(args) <= _BUFFER or args[_BUFFER] is not ours:
                return inner(*args, **kwargs)
            count, draft = args[_SEQ_LENS].numel(), args[_DRAFT]
            if count * draft * context <= ours.numel():
                return inner(*args, **kwargs)
            # An eager batch larger than the captured ones: build it without a buffer.
            larger = list(args)
            larger[_SEQ_LENS_SUM], larger[_BUFFER] = count * context, None
            return inner(*larger, **kwargs)

        return build_tree_kernel_efficient

    patching.override(f"{BASE}.get_verify_buffers_to_fill_after_draft", make_get)
    patching.override(f"{BASE}.update_verify_buffers_to_fill_after_draft", make_update)
    patching.override(BUILD_TREE, make_build)
