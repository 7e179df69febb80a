"""mla.flashinfer-host-indptr: the FlashInfer draft plans from lengths that the host has.

Before the steps of a draft are planned, stock copies ``kv_indptr`` from the device, which waits
for everything queued on the stream. The device computed it from lengths that the host knows. Only
the plan of a replayed graph takes the copy; an eager draft's plan makes another, and waits anyway.
The pinned memory of the plans needs no such wait: a verify gives the lengths that the host has, and
what the draft before it copied from there is done by then.
Upstream has this from 0.5.23 on behind SGLANG_OPT_FLASHINFER_DRAFT_HOST_INDPTR, off by default,
whose values differ from the device's in the padding rows of a replayed graph.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ...model.patching import Patching
from .host_copies import known
from .situations import DRAFT_LENGTHS, Served, refuse_platforms

BACKEND = "sglang.srt.layers.attention.flashinfer_backend:FlashInferMultiStepDraftBackend"

UPSTREAM = "SGLANG_OPT_FLASHINFER_DRAFT_HOST_INDPTR"


def install_replay(patching: Patching) -> None:
    """Up to 0.5.12.post1, where replayed graphs have an entry of their own."""
    patching.override(f"{BACKEND}.init_forward_metadata_replay_cuda_graph", _around(patching))


def install_out_graph(patching: Patching) -> None:
    """From 0.5.13 on: captured and replayed graphs have one entry."""
    around = _around(patching)

    def make(inner: Any) -> Any:
        replay = around(inner)

        def init_forward_metadata_out_graph(
            self: Any, forward_batch: Any, in_capture: bool = False
        ) -> None:
            if in_capture:  # positions and lengths are placeholders that do not agree
                inner(self, forward_batch, in_capture=True)
            else:
                replay(self, forward_batch)

        return init_forward_metadata_out_graph

    patching.override(f"{BACKEND}.init_forward_metadata_out_graph", make)


def host_indptr(lengths: Any, rows: int, topk: int, steps: int) -> Any:
    """What the draft's index kernel writes into ``kv_indptr``, from lengths on the host.

    Step i gives each of a request's `topk` branches its prefix and i + 1 drafted tokens. The
    padding rows of a graph have no prefix, as their positions are zero.

    Args:
        lengths: prefix lengths, one per request and padding row, integers on the CPU.
        rows: how many of them are requests.
        topk: branches per request.
        steps: steps of the draft.

    Returns:
        int32 on the CPU, (steps, len(lengths) * topk + 1).
    """
    import numpy as np
    import torch

    # NumPy takes a third of PyTorch's time for a few numbers.
    prefix = lengths.numpy()
    if rows < prefix.size:
        prefix = prefix.copy()
        prefix[rows:] = 0
    branches = prefix.repeat(topk) if topk > 1 else prefix
    count = branches.size
    indptr = np.empty((steps, count + 1), np.int32)
    indptr[:, 0] = 0
    np.add(branches.cumsum(dtype=np.int32), _drafted(steps, count), out=indptr[:, 1:])
    return torch.from_numpy(indptr)


@cache
def _drafted(steps: int, count: int) -> Any:
    """Tokens that the branches up to each have drafted by each step, int32, (steps, count)."""
    import numpy as np

    return np.multiply.outer(np.arange(1, steps + 1), np.arange(1, count + 1)).astype(np.int32)


def _around(patching: Patching) -> Any:
    """Wrap an entry: while it runs, the backend's ``kv_indptr`` knows its copy on the host."""
    refuse_platforms(patching)
    ran = patching.ran
    envs: Any = patching.module("sglang.srt.environ").envs
    switch: Any = getattr(envs, UPSTREAM, None)

    def built_in(_arguments: Any) -> str | None:
        return f"{UPSTREAM} is set: stock plans from the host's lengths" if switch.get() else None

    served = Served(patching, *DRAFT_LENGTHS, *(() if switch is None else (built_in,)))

    def make(inner: Any) -> Any:
        def init(self: Any, forward_batch: Any, *more: Any, **named: Any) -> None:
            rows = _requests(self, forward_batch)
            if rows is None or not served():
                inner(self, forward_batch, *more, **named)
                return
            indptr = self.kv_indptr
            host = host_indptr(
                forward_batch.seq_lens_cpu, rows, self.topk, self.speculative_num_steps
            )
            self.kv_indptr = known(indptr, host, ran)
            try:
                inner(self, forward_batch, *more, **named)
            finally:
                self.kv_indptr = indptr

        return init

    return make


def _requests(backend: Any, forward_batch: Any) -> int | None:
    """How many rows of a batch are requests; None if the host does not know exactly."""
    lengths = forward_batch.seq_lens_cpu
    spec_info = forward_batch.spec_info
    if lengths is None or type(spec_info).__name__ != "EagleDraftInput":
        return None
    if lengths.is_cuda or lengths.numel() != forward_batch.batch_size:
        return None
    if getattr(backend, "draft_window_size", 0):
        return None  # the kernel clips the lengths
    if getattr(forward_batch, "_original_batch_size", None) is not None:
        return None  # data parallelism pads the draft's input too
    # A replay pads the lengths and the positions, but never the draft's input.
    topk_p = spec_info.topk_p
    if topk_p is None or topk_p.shape[0] > lengths.numel():
        return None
    return int(topk_p.shape[0])
