"""What a captured gated-delta-net prefill reads: tables of a fixed size, filled before each replay.

A breakable prefill graph is captured once for a number of tokens, its *bucket*, and replayed for
every batch that fits. The grids of the kernels are those of the capture, so they span the most rows
that a batch of that many tokens can have. A row that a batch does not use is marked, and its
program returns or writes nothing.

`Tables` has what the convolution reads. Its subclasses add what the kernel of the delta rule needs.

Needs torch, numpy and triton: imported by the install function only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton

from .. import host
from . import track_copies

NOBODY = -1
"""What stock's kernels take for no slot, and for no request of a block."""


@dataclass(frozen=True)
class Tracked:
    """The states of a batch that the prefix cache keeps, for each of its requests.

    Attributes:
        kept: what is kept of it, see `track_copies.NOTHING`.
        windows: the batch's token at which the kept convolution window starts; it may lie outside
            of the batch, as in stock.
        slots: where its states are kept, int64 of shape ``[batch]`` on the device.
    """

    kept: Sequence[int]
    windows: Sequence[int]
    slots: torch.Tensor


class Tables(ABC):
    """The tables of one bucket.

    Attributes:
        MOST: the most requests of a batch that tables of this kind hold.
        tokens: the bucket.
        requests: the most requests of a batch.
        tracks: whether batches of this server may track states.
        starts: ``query_start_loc``, int32 of shape ``[requests + 1]``.
        blocks: request and block of each block of the convolution, int32 of shape
            ``[most blocks, 2]``.
        has_state: whether a request has a cached prefix, bool of shape ``[requests]``.
        slots: where each request's states are, of shape ``[requests]``; `NOBODY` where none is.
        layers: the layers that were captured on them.
        alone: whether a batch that does not fit has no other graph.
        has_one: whether the batch in them has a graph of its own, see `one_request`.
    """

    MOST = 0

    def __init__(
        self, *, tokens: int, requests: int, block: int, tracks: bool, slots_like: torch.Tensor
    ) -> None:
        """Allocate them.

        Args:
            tokens: the bucket, at least 1.
            requests: the most requests of a batch; one never has more than it has tokens.
            block: tokens of a block of the convolution.
            tracks: whether batches may track states.
            slots_like: slots of states as the pool gives them, for their dtype and device.
        """
        self.tokens = tokens
        self.requests = requests = max(1, min(tokens, requests))
        self.tracks = tracks
        self._block = block
        sizes = self._sizes()
        ends = np.cumsum([*sizes.values()])
        self._parts = {
            name: slice(int(end) - size, int(end))
            for (name, size), end in zip(sizes.items(), ends, strict=True)
        }
        # One tensor for all parts: a fill is one copy.
        self._packed = torch.zeros(int(ends[-1]), dtype=torch.int32, device=slots_like.device)
        self.starts = self._view("starts")
        self.blocks = self._view("blocks").view(-1, 2)
        self.has_state = self._view("has_state").view(torch.bool)[:requests]
        self.slots = slots_like.new_full((requests,), NOBODY)
        self._destinations = self.slots.new_zeros(requests, dtype=torch.int64)
        self.layers: list[int] = []
        self.alone = True
        self.has_one = False

    # -- what the kinds of tables differ in ---------------------------------------------------

    @classmethod
    @abstractmethod
    def unserved(cls, backend: Any, modules: Any) -> str | None:
        """Why a backend's kernel can't run on these tables; None if it can."""

    @classmethod
    def most(cls, modules: Any) -> int:
        """The most requests of a batch; `modules` returns an imported module by its name."""
        return cls.MOST

    @staticmethod
    def rounds_alike(tokens: int, bucket: int) -> bool:
        """Whether so many tokens in the bucket give the bits that they give by themselves."""
        return True

    def begin(self, backend: Any, forward_batch: Any, tokens: int) -> torch.Tensor:
        """Prepare for a batch of so many tokens; returns where the states of its requests are.

        Translates slots as stock does before its layers.
        """
        pool, translate = backend.req_to_token_pool, backend._translate_mamba_indices
        if forward_batch.mamba_track_indices is not None:
            forward_batch.mamba_track_indices = translate(forward_batch.mamba_track_indices)
        slots: torch.Tensor = translate(pool.get_mamba_indices(forward_batch.req_pool_indices))
        return slots

    def kernel(self, backend: Any, modules: Any) -> Any:
        """The kernel of the delta rule that a captured layer calls."""
        return backend.kernel_dispatcher.extend_kernel

    def prepare_one(self, backend: Any, modules: Any) -> bool:
        """Prepare for a second capture, see `one_request`; False if there is to be none."""
        return False

    def keep_states(self, at_chunks: torch.Tensor, states: torch.Tensor) -> None:  # noqa: B027  (a kind need not)
        """Keep the tracked recurrent states within the graph.

        Args:
            at_chunks: states at the starts of chunks, of shape ``[1, chunks, heads, value, key]``.
            states: the layer's states, of shape ``[slots, heads, value, key]``, after the layer has
                written its own.
        """

    def _sizes(self) -> dict[str, int]:
        """How many int32 each part has."""
        return {
            "starts": self.requests + 1,
            "blocks": 2 * (-(-self.tokens // self._block) + self.requests),
            "has_state": -(-self.requests // 4),
            "kept": self.requests,
            "window": self.requests,
            "total": 1,
        }

    # -- all of them --------------------------------------------------------------------------

    def holds(self, tokens: int, requests: int) -> bool:
        """Whether a batch can be replayed, bit by bit; one without requests is an idle rank's."""
        if not tokens:
            return not requests
        if tokens > self.tokens or requests > self.requests:
            return False
        return self.rounds_alike(tokens, self.tokens)

    def fill(
        self,
        lens: Sequence[int],
        prefixes: Sequence[int],
        slots: torch.Tensor,
        tracked: Tracked | None,
    ) -> None:
        """Write a batch into the tables: one copy to the device for all of them, and no wait.

        A request has `lens` new tokens behind those of its prefix. Its states are in `slots`, of
        shape ``[batch]`` on the device.

        Raises:
            ValueError: the batch does not fit, or tracks states on a server that tracks none.
        """
        if not self.holds(sum(lens), len(lens)):
            raise ValueError(
                f"{len(lens)} requests of {sum(lens)} tokens do not fit {self.requests} of "
                f"{self.tokens}"
            )
        if tracked is not None and not self.tracks:
            raise ValueError("a batch tracks states on a server that captured none")
        count = len(lens)
        with host.staging(self._packed) as staged:
            parts = {name: staged[part] for name, part in self._parts.items()}
            self._write(parts, np.asarray(lens, dtype=np.int64), prefixes, tracked)
        self.slots[:count].copy_(slots)
        self.slots[count:].fill_(NOBODY)  # also where a failed fill, or anybody else, left a slot
        if tracked is not None:
            self._destinations[:count].copy_(tracked.slots)

    def keep_windows(self, mixed: torch.Tensor, conv: torch.Tensor) -> None:
        """Keep the tracked convolution windows.

        Args:
            mixed: the layer's input to the convolution, of shape ``[tokens, width]``.
            conv: the layer's states of it, of shape ``[slots, width, window]``.
        """
        if self.tracks:
            width, window = conv.shape[1:]
            grid = (self.requests, triton.cdiv(width, track_copies.WINDOW_WIDTH))
            track_copies.windows[grid](
                mixed,
                conv,
                self._view("kept"),
                self._view("window"),
                self._destinations,
                self._view("total"),
                *mixed.stride(),
                *conv.stride(),
                width,
                WINDOW=window,
                WIDTH=track_copies.WINDOW_WIDTH,
            )

    def _view(self, name: str) -> torch.Tensor:
        return self._packed[self._parts[name]]

    def _write(
        self,
        parts: dict[str, Any],
        lens: Any,
        prefixes: Sequence[int],
        tracked: Tracked | None,
    ) -> None:
        count = len(lens)
        parts["starts"][:] = cumulated(lens, self.requests)  # further requests have no tokens
        parts["total"][0] = lens.sum()
        enumerate_rows(parts["blocks"], -(-lens // self._block), (NOBODY, 0))
        states = parts["has_state"].view(np.uint8)
        states[:count] = np.asarray(prefixes, dtype=np.int64) > 0
        states[count:] = 0
        parts["kept"][:] = track_copies.NOTHING
        if tracked is not None:
            parts["kept"][:count] = tracked.kept
            parts["window"][:count] = tracked.windows


def cumulated(counts: Any, requests: int) -> Any:
    """The sums before each of so many requests, and the whole: those without a count have none."""
    return np.cumsum(np.pad(counts, (1, requests - len(counts))))


def enumerate_rows(table: Any, counts: Any, unused: tuple[int, int]) -> None:
    """Write pairs of request and 0, 1, … its count - 1, one request after the other."""
    pairs = table.reshape(-1, 2)
    used = int(counts.sum())
    pairs[:used, 0] = np.repeat(np.arange(len(counts)), counts)
    pairs[:used, 1] = np.arange(used) - np.repeat(np.cumsum(counts) - counts, counts)
    pairs[used:] = unused
