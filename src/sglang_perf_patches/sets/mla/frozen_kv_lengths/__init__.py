"""A draft of Gemma 4's MTP does not wait for the step before.

Stock asks the GPU for the sum of all lengths before each draft, so the host launches nothing until
the step before has ended. On Triton that sum only sizes memory: the mask of the drafted tree, where
the kernel finds each request's place by the lengths on the GPU. Here the host's own bound takes its
place: the tokens that the requests have memory for.
"""

from __future__ import annotations

from typing import Any

from ....model.declaration import Declaration, gains
from ....model.patch import of
from ..proven import METADATA
from ..references import ATTENTION, SPECULATIVE

_MODULE = f"{SPECULATIVE}.frozen_kv_mtp_worker_v2"
_DRAFT = f"{_MODULE}:FrozenKVMTPDraftWorker"
_TRITON = f"{ATTENTION}.triton_backend:TritonAttnBackend"
_NOT = {"eagle", "standalone", "draft-vocabulary"}

PATCH = Declaration(
    *(__name__, "0.5.14 … 0.5.23"),
    only_with=("frozen-drafts", "single-drafts", "triton-only"),
    proven_with=dict.fromkeys(
        ("frozen-kv-mtp", "multimodal", *(each for each in METADATA if each not in _NOT)), "verify"
    ),
    gain_with="-tensor-parallel",
    worth=gains(
        "Gemma 4 E4B with MTP on an H200: 9.78 ms per token of one request become 8.97",
        "mla.md#frozen-kv-e4b-1",
    ),
    upstream_note="upstream's EAGLE drafts wait no longer since 0.5.13, these still do",
    depends=(
        *of(_DRAFT, "_init_frozen_kv_metadata", "_init_frozen_kv_metadata_replay_cuda_graph"),
        *of(_TRITON, "__init__", "needs_cpu_seq_lens", "init_cuda_graph_state"),
        *of(_TRITON, "init_forward_metadata", "init_forward_metadata_out_graph"),
        f"{_TRITON}._update_target_verify_buffers",
        f"{SPECULATIVE}.eagle_utils:build_tree_kernel_efficient",
    ),
    anytime="it holds nothing between two drafts",
)


@PATCH.setup()
def setup(patch):
    patch.state.bound = None
    patch.state.held = lambda request: request.kv.kv_allocated_len


@PATCH.setup("… 0.5.15.post1")
def setup_requests(patch):
    """A request itself counts its memory."""
    patch.state.held = lambda request: request.kv_allocated_len


@PATCH.replaces(f"{_DRAFT}.draft")
def draft(self, batch, *, patch, stock):
    patch.state.bound = _bound(self, batch, patch.state.held)
    try:
        return stock(self, batch)
    finally:
        patch.state.bound = None


@PATCH.makes(f"{_MODULE}:torch")
def torch(patch, stock):
    """This module's ``torch``: while a draft has a bound, its ``sum`` returns the bound."""
    return _Torch(stock, patch)


class _Torch:
    def __init__(self, torch: Any, patch: Any) -> None:
        self._torch, self._patch = torch, patch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def sum(self, *args: Any, **rest: Any) -> Any:
        bound = self._patch.state.bound
        if bound is None:
            return self._torch.sum(*args, **rest)
        self._patch.ran.seen = True
        return _Bound(bound)


class _Bound(int):
    """A number that is asked for as a tensor's is."""

    def item(self) -> int:
        return int(self)


def _bound(worker: Any, batch: Any, held: Any) -> int | None:
    """At least as many tokens as all requests have; None if the host cannot tell, or too many."""
    backend = worker.target_worker.model_runner.attn_backend
    count = batch.seq_lens.shape[0]
    if (
        batch.seq_lens_cpu is not None
        or worker.topk != 1
        or type(backend).__name__ != "TritonAttnBackend"
        or len(batch.reqs) != count
    ):
        return None
    bound = sum(map(held, batch.reqs))
    # A graph's mask has room for so many.
    room = count * (backend.max_context_len - worker.speculative_num_draft_tokens)
    return bound if bound <= room else None
