"""Layers that are captured up to FlashInfer's kernel of the delta rule, where the graph breaks.

That kernel picks its algorithm by the number of requests and of tokens, so it is called between
two segments of the graph, with the numbers that stock gives it. What comes before it in a layer is
captured with the rest of the model: convolution, split, gates, and stock's own preparation of the
kernel's input.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from . import BREAKABLE, one_request
from .prefill_tables import Tables

_PER_TOKEN = ("q", "k", "v", "g", "beta", "output")
"""The kernel's arguments that have a row for each token."""

_Moved = tuple[torch.Tensor, torch.Tensor] | None
"""Rows, and where their states go; None if none does."""


@dataclass
class Live:
    """What the kernel's call reads of the batch that is replayed."""

    tokens: int
    starts: torch.Tensor  # ``cu_seqlens``, int64 of shape ``[requests + 1]``
    slots: torch.Tensor  # where each request's states are, int64 of shape ``[requests]``
    metadata: Any  # stock's own ForwardMetadata
    at_chunks: _Moved  # which of the states that the kernel keeps at chunks go to which slots
    final: _Moved  # which slots' states after the batch go to which slots


def live(backend: Any, forward_batch: Any, tokens: int) -> Live:
    """Make stock make a batch's metadata, and compute once what each of its layers would.

    The backend's ``forward_metadata`` is the batch's own afterwards. An idle rank has no tokens.
    """
    backend.init_forward_metadata(forward_batch)
    meta = backend.forward_metadata
    tracks = meta.has_mamba_track_mask
    return Live(
        tokens=tokens,
        starts=meta.query_start_loc.to(torch.int64),
        slots=_written(backend, meta.mamba_cache_indices),
        metadata=meta,
        at_chunks=_moved(meta.track_ssm_h_src, meta.track_ssm_h_dst) if tracks else None,
        final=_moved(meta.track_ssm_final_src, meta.track_ssm_final_dst) if tracks else None,
    )


def _written(backend: Any, slots: torch.Tensor) -> torch.Tensor:
    """Where the kernel writes states: of a row without a slot into the last one, as in stock."""
    last = backend.req_to_token_pool.mamba_pool.mamba_cache.temporal.shape[1] - 1
    return torch.where(slots >= 0, slots, last).to(torch.int64)


def _moved(sources: torch.Tensor, targets: torch.Tensor) -> _Moved:
    return (sources.to(torch.int64), targets.to(torch.int64)) if sources.numel() else None


class BreakTables(Tables):
    """The tables of one bucket, and what calls FlashInfer's kernel for layers captured on them."""

    MOST = 256  # a request costs little: the kernel's call has the batch's own
    live: Live  # set before each replay with breaks
    one: one_request.OneRequest | None = None  # once set, the kernel's calls are captured too
    _own: Any = None  # the server's FlashInferGDNKernel

    @classmethod
    def unserved(cls, backend: Any, modules: Any) -> str | None:
        """As `Tables.unserved`."""
        own = backend.kernel_dispatcher.extend_kernel
        held = backend.req_to_token_pool.mamba_pool.mamba_cache.temporal.dtype
        if own.use_state_pool or own._prefill_needs_fp32_state:
            return "FlashInfer's kernel is another one on this GPU"
        if held != torch.float32:
            return f"FlashInfer's kernel would convert states of {held}"
        return None

    def begin(self, backend: Any, forward_batch: Any, tokens: int) -> torch.Tensor:
        """As `Tables.begin`; makes stock make its metadata only if the graph breaks for them."""
        self.has_one = self.one is not None and self.one.takes(backend, forward_batch)
        if self.one is None or not self.has_one:
            self.live = live(backend, forward_batch, tokens)
            slots: torch.Tensor = self.live.metadata.mamba_cache_indices
            return slots
        slots = super().begin(backend, forward_batch, tokens)
        self.one.fill(_written(backend, slots), forward_batch)
        return slots

    def prepare_one(self, backend: Any, modules: Any) -> bool:
        """As `Tables.prepare_one`."""
        every = int(modules("sglang.srt.runtime_context").mamba_cache_chunk_size())
        states = backend.req_to_token_pool.mamba_pool.mamba_cache.temporal
        length = one_request.chunk_length(self._own, states.shape[2], states.device)
        if length is None or not self.tracks or self.tokens <= every:
            return False
        self.one = one_request.OneRequest(self.tokens, every, length, states.device)
        return True

    def kernel(self, backend: Any, modules: Any) -> Any:
        """These tables, whose `extend` stands in for the kernel's."""
        if self._own is None:
            self._own = backend.kernel_dispatcher.extend_kernel
            eager_on_graph = modules(BREAKABLE).eager_on_graph
            # A capture computes nothing in the break's place.
            self._break = eager_on_graph(True, capture_stub=lambda *_: None)(_called)
        return self

    def extend(self, q, k, v, g, beta, *, ssm_states, output, **rest):
        """As stock's, whose code runs; but states are moved at the kernel's call, of the batch.

        Rows of no token are zero, as stock's layer leaves them.
        """

        def prefill(**kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
            written = kwargs["output"]
            if self.one is not None:
                self.one.run(self._own._prefill_fn, ssm_states, kwargs)
            else:
                rows = [kwargs.pop(name) for name in _PER_TOKEN]
                self._break(*rows, lambda *now: self._run(ssm_states, kwargs, *now))
            return written, kwargs["output_state"]

        if self.one is None:
            output.zero_()
        stocks = copy.copy(self._own)
        stocks._prefill_fn = prefill
        nobody = torch.empty(0, dtype=torch.int64, device=q.device)
        rest |= {"cache_indices": nobody, "query_start_loc": nobody}
        return stocks.extend(q, k, v, g, beta, ssm_states=ssm_states, output=output, **rest)

    def _run(self, states: torch.Tensor, kwargs: dict[str, Any], *rows: torch.Tensor) -> None:
        """Call the kernel for the batch, then keep what it tracks."""
        now = self.live
        if not now.tokens:
            return
        if rows[0].shape[0] != now.tokens:
            rows = tuple(each.narrow(0, 0, now.tokens) for each in rows)
        count = now.metadata.num_state_checkpoints
        kept = states.new_empty((count, *states.shape[1:])) if count > 0 else None
        before = states.index_select(0, now.slots)  # the kernel gets copies of states, as in stock
        after = torch.empty_like(before)
        kwargs = dict(zip(_PER_TOKEN, rows, strict=True)) | kwargs
        kwargs |= {
            "initial_state": before,
            "output_state": after,
            "cu_seqlens": now.starts,
            "state_checkpoints": kept,
            "checkpoint_cu_starts": now.metadata.state_checkpoint_cu_starts,
            "checkpoint_every_n_tokens": now.metadata.state_checkpoint_every_n_tokens,
        }
        self._own._prefill_fn(**kwargs)
        states.index_copy_(0, now.slots, after)
        for moved, held in ((now.at_chunks, kept), (now.final, states)):
            if moved is not None:
                assert held is not None  # or stock's own layer would fail too
                states.index_copy_(0, moved[1], held.index_select(0, moved[0]))


def _called(*args: Any) -> None:
    """The break: the last argument gets the others, which a replay has by their addresses."""
    *rows, run = args
    run(*rows)
