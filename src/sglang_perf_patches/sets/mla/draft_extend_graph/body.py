"""mla.draft-extend-graph: FlashAttention's draft-extend by graph.

The draft worker captures the graph of its draft-extend for backends of a list, in which
FlashAttention's is missing before 0.5.23, so that phase runs eagerly at every step. Upstream added
it in 0.5.23; the backend has what capture and replay need from 0.5.11 on.
"""

from __future__ import annotations

import weakref
from typing import Any

from ....model.patching import Patching
from ..references import FLASH, FLASH_MODULE, RUNNER, WORKER
from . import CAPTURE, GRAPHS
from .scales import one_scale

_LISTED = ("TritonAttnBackend", FLASH)
_LISTED_DRAFT = ("TritonMultiStepDraftBackend", f"{FLASH_MODULE}:FlashAttentionMultiStepBackend")
"""A name in the worker's list of backends, and the class to put beside it."""

_READ_DONE = ("war_fastpath_read_done_event", "shared_read_done_event")
_SPECULATES = ("is_eagle", "is_standalone")


def install_by_draft(patching: Patching) -> None:
    """0.5.9, which goes by the backend that drafts."""
    _let_in(patching, GRAPHS, _LISTED_DRAFT)


def install_graphs(patching: Patching) -> None:
    """0.5.10 to 0.5.13.post1: one method captures all graphs of the draft worker."""
    _let_in(patching, GRAPHS)


def install_capture(patching: Patching) -> None:
    """0.5.14 to 0.5.15.post1."""
    _let_in(patching, CAPTURE)


def install_in_graph_reads(patching: Patching) -> None:
    """0.5.16 to 0.5.21, whose graph reads the request pool, which its runner does not know of."""
    _let_in(patching, CAPTURE)
    _leave_host_lengths(patching)
    _fence_whole_forward(patching)


def install(patching: Patching) -> None:
    """0.5.22: the runner queries the backend for the end of its reads."""
    _let_in(patching, CAPTURE)
    _leave_host_lengths(patching)


def unlike(worker: Any) -> str | None:
    """Why stock runs a worker's draft-extend; None if a graph gives the same."""
    backend, runner = worker.draft_extend_attn_backend, worker.draft_runner
    if backend.fa_impl_ver != 3:
        return "FlashAttention 4 was not compared with its graph"
    if backend.topk > 1:
        return "drafts with topk > 1 were not compared"
    if getattr(backend, "use_sliding_window_kv_pool", False) or getattr(
        backend, "is_prefill_aware_swa", False
    ):
        return "sliding-window pools keep more state than the graph's lengths and tables"
    if backend.is_encoder_decoder:
        return "cross attention is not part of the graph"
    if getattr(backend, "_kv_shard_pool", None) is not None:
        return "sharded KV pools plan from host lengths"
    if any(getattr(each, "model_is_mrope", False) for each in (runner, runner.model_config)):
        return "the runner does not hand multimodal rotary positions to the graph"
    if one_scale(runner.model_config):
        return "activations share one scale with the rows that only pad a batch"
    algorithm = worker.speculative_algorithm
    frozen = getattr(algorithm, "is_frozen_kv_mtp", None)
    if not any(getattr(algorithm, ask)() for ask in _SPECULATES) or (frozen and frozen()):
        return "only EAGLE, EAGLE3, MTP and STANDALONE were compared"
    return None


def _let_in(patching: Patching, method: str, listed: tuple[str, str] = _LISTED) -> None:
    """Have stock's own method capture the draft-extend of a FlashAttention backend too."""
    ran = patching.ran
    module: Any = patching.module(WORKER)
    flash = patching.get(FLASH)
    name, beside = listed[0], patching.get(listed[1])
    capturing: weakref.WeakSet[Any] = weakref.WeakSet()
    patching.drain(
        lambda: not len(capturing),
        "no draft worker is left that may replay a draft-extend that was captured with it",
    )

    def make(inner: Any) -> Any:
        def capture(self: Any) -> None:
            backend = self.draft_extend_attn_backend
            if type(backend) is not flash:
                inner(self)
                return
            reason = unlike(self)
            if reason is not None:
                patching.gate(reason)
                inner(self)
                return
            # Why this trick: the list is a local tuple in the middle of a long method, and
            # isinstance accepts nested tuples. The method reads the name from the module, and
            # nothing else does. It reads the list once, at the start, so nothing else sees it.
            stock = getattr(module, name)
            setattr(module, name, (stock, beside))
            capturing.add(self)
            try:
                with _OneTable(backend):
                    inner(self)
            finally:
                setattr(module, name, stock)
            ran.seen |= self.cuda_graph_runner_for_draft_extend is not None

        return capture

    patching.override(method, make)


class _OneTable:
    """While graphs are captured: a backend's state has one page table, that of the draft-extend.

    Stock allocates one for each mode, max_bs x pages of the context, and this backend runs in one.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __enter__(self) -> None:
        backend = self._backend
        stock = backend.init_cuda_graph_state

        def init_cuda_graph_state(*args: Any, **kwargs: Any) -> None:
            stock(*args, **kwargs)
            table = backend.draft_extend_metadata["page_table"]
            for state in (backend.decode_cuda_graph_metadata, backend.target_verify_metadata):
                for name in ("page_table", "page_table_draft_decode"):
                    if name in state and state[name].shape == table.shape:
                        state[name] = table

        backend.init_cuda_graph_state = init_cuda_graph_state

    def __exit__(self, *_error: object) -> None:
        del self._backend.init_cuda_graph_state


def _leave_host_lengths(patching: Patching) -> None:
    """Leave a batch whose lengths the host has to stock, whose table is then as wide as they are.

    FlashAttention splits its work by the width of the table, and another split rounds otherwise.
    """
    flash = patching.get(FLASH)

    def make(inner: Any) -> Any:
        def can_run_graph(self: Any, forward_batch: Any) -> bool:
            if (
                forward_batch.seq_lens_cpu is not None
                and type(self.draft_extend_attn_backend) is flash
            ):
                return False
            return bool(inner(self, forward_batch))

        return can_run_graph

    patching.override(f"{RUNNER}.can_run_graph", make)


def _fence_whole_forward(patching: Patching) -> None:
    """Have the scheduler wait for the whole forward, as behind an eager draft-extend.

    The runner says before the replay that all reads of the request pool are done. FlashAttention's
    graph reads it once more.
    """
    flash = patching.get(FLASH)

    def make(inner: Any) -> Any:
        def execute(self: Any, *args: Any, **kwargs: Any) -> Any:
            out = inner(self, *args, **kwargs)
            if type(self.draft_extend_attn_backend) is flash:
                for event in _READ_DONE:
                    if hasattr(self.model_runner, event):
                        setattr(self.model_runner, event, None)
            return out

        return execute

    patching.override(f"{RUNNER}.execute", make)
