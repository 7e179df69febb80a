"""A draft of Gemma 4's MTP does not wait for the step before.

Stock asks the GPU for the sum of all lengths before each draft, so the host launches nothing until
the step before has ended. On Triton that sum only sizes memory: the mask of the drafted tree, where
the kernel finds each request's place by the lengths on the GPU. Here the host's own bound takes its
place: the tokens that the requests have memory for.
"""

from __future__ import annotations

from types import SimpleNamespace
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


@PATCH.replaces(f"{_DRAFT}.draft")
def draft(self, batch, *, patch, stock):
    patch.state.bound = _bound(self, batch)
    try:
        return stock(self, batch)
    finally:
        patch.state.bound = None


@PATCH.makes(f"{_MODULE}:torch")
def torch(patch, stock):
    """This module's ``torch``: while a draft has a bound, ``sum().item()`` returns the bound."""

    class Torch:
        def __getattr__(self, name: str) -> Any:
            return getattr(stock, name)

        def sum(self, *args: Any, **rest: Any) -> Any:
            bound = patch.state.bound
            if bound is None:
                return stock.sum(*args, **rest)
            patch.ran.seen = True
            return SimpleNamespace(item=lambda: bound)

    return Torch()


def _bound(worker: Any, batch: Any) -> int | None:
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
    # Up to 0.5.15.post1 a request itself counts its memory.
    bound = sum(getattr(req, "kv", req).kv_allocated_len for req in batch.reqs)
    # A graph's mask has room for so many.
    room = count * (backend.max_context_len - worker.speculative_num_draft_tokens)
    return bound if bound <= room else None
