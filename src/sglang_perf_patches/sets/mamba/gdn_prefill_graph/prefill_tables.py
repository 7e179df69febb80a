"""What a captured gated-delta-net prefill reads: tables of a fixed size, filled before each replay.

A breakable prefill graph is captured once for a number of tokens, its *bucket*, and replayed for
every batch that fits. The kernels' grids are those of the capture, so they span the most rows that
a batch of that many tokens can have; a row that a batch does not use is marked, and its program
returns or writes nothing.

Needs torch, numpy and triton: imported by the install function only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .. import host
from . import track_copies

NOBODY = -1
"""What stock's kernels take for no slot, and for no request of a block."""
BEYOND = 1 << 20
"""A chunk that is past the end of any sequence: each of its loads and stores is masked."""
CHUNK = 64
"""Tokens of a chunk of the delta rule, as stock's ``CHUNK_SIZE``, with which it is compared."""


def tile(tokens: int) -> int:
    """Rows of the tile with which stock's ``chunk_fwd_o`` computes a prefill of so many tokens.

    A prefill of a few tokens has a smaller one, and another tile rounds otherwise.
    """
    return min(CHUNK, max(16, 1 << (tokens - 1).bit_length()))


@dataclass(frozen=True)
class Tracked:
    """The states of a batch that the prefix cache keeps, all by row of the batch.

    Attributes:
        final: rows whose state after the last token is kept.
        chunks: rows whose state at a chunk's start is kept, and which of the batch's chunks it is.
        windows: tracked rows, and the batch's token at which the kept convolution window starts;
            it may lie outside of the batch, as in stock.
        slots: where each row's states are kept, int64 of shape ``[batch]`` on the device.
    """

    final: Sequence[int]
    chunks: Sequence[tuple[int, int]]
    windows: Sequence[tuple[int, int]]
    slots: torch.Tensor


class Tables:
    """The tables of one bucket.

    Attributes:
        tokens: the bucket.
        requests: the most requests of a batch.
        tracks: whether batches of this server may track states.
        starts: ``query_start_loc``, int32 of shape ``[requests + 1]``.
        chunks: request and chunk of each chunk, int32 of shape ``[most chunks, 2]``.
        chunk_starts: chunks before each request, int32 of shape ``[requests + 1]``.
        blocks: request and block of each block of the convolution, int32 of shape
            ``[most blocks, 2]``.
        has_state: whether a request has a cached prefix, bool of shape ``[requests]``.
        slots: where each request's states are, of shape ``[requests]``; `NOBODY` where none is.
        layers: the layers that were captured on them.
        breaks: whether the kernel of the delta rule is called between the segments of the graph.
        kernel: if so, the `kernel_break.KernelBreak` that calls it, and
        live: the batch that the call reads, a `kernel_break.Live`.
        alone: whether a batch that does not fit has no other graph.
    """

    def __init__(
        self,
        *,
        tokens: int,
        requests: int,
        block: int,
        tracks: bool,
        slots_like: torch.Tensor,
        breaks: bool = False,
    ) -> None:
        """Allocate them.

        Args:
            tokens: the bucket, at least 1.
            requests: the most requests of a batch; one never has more than it has tokens.
            block: tokens of a block of the convolution.
            tracks: whether batches may track states.
            slots_like: slots of states as the pool gives them, for their dtype and device.
            breaks: see the attribute.
        """
        self.breaks = breaks
        self.kernel: Any = None
        self.live: Any = None
        self.tokens = tokens
        self.requests = requests = max(1, min(tokens, requests))
        self.tracks = tracks
        self._block = block
        self._device = slots_like.device
        chunks = -(-tokens // CHUNK) + requests
        blocks = -(-tokens // block) + requests
        sizes = {
            "starts": requests + 1,
            "chunks": 2 * chunks,
            "chunk_starts": requests + 1,
            "blocks": 2 * blocks,
            "has_state": -(-requests // 4),
            "kept": requests,
            "chunk_kept": requests,
            "window": requests,
            "total": 1,
        }
        ends = np.cumsum([*sizes.values()])
        self._parts = {
            name: slice(int(end) - size, int(end))
            for (name, size), end in zip(sizes.items(), ends, strict=True)
        }
        self._packed = torch.zeros(int(ends[-1]), dtype=torch.int32, device=self._device)
        self.starts = self._view("starts")
        self.chunks = self._view("chunks").view(chunks, 2)
        self.chunk_starts = self._view("chunk_starts")
        self.blocks = self._view("blocks").view(blocks, 2)
        self.has_state = self._view("has_state").view(torch.bool)[:requests]
        self.slots = slots_like.new_full((requests,), NOBODY)
        self._destinations = torch.zeros(requests, dtype=torch.int64, device=self._device)
        self.layers: list[int] = []
        self.alone = True

    def fits(self, lens: Sequence[int]) -> bool:
        """Whether a batch of requests with so many new tokens each can be replayed, bit by bit."""
        tokens = sum(lens)
        if not 0 < tokens <= self.tokens or len(lens) > self.requests:
            return False
        return self.breaks or tile(tokens) == tile(self.tokens)

    def fill(
        self,
        lens: Sequence[int],
        prefixes: Sequence[int],
        slots: torch.Tensor,
        tracked: Tracked | None,
    ) -> None:
        """Write a batch into the tables: one copy to the device for all of them, and no wait.

        Args:
            lens: new tokens of each request.
            prefixes: its tokens that are there already.
            slots: where its states are, of shape ``[batch]`` on the device.
            tracked: the states that the prefix cache keeps; None for none.

        Raises:
            ValueError: the batch does not fit, or tracks states where the server did not say so.
        """
        if not self.fits(lens):
            raise ValueError(
                f"{len(lens)} requests of {sum(lens)} tokens do not fit {self.requests} of "
                f"{self.tokens}"
            )
        if tracked is not None and not self.tracks:
            raise ValueError("a batch tracks states on a server that captured none")
        count = len(lens)
        with host.staging(self._packed) as staged:
            self._write(staged, lens, prefixes, tracked)
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
            track_copies.windows(
                mixed,
                conv,
                kept=self._view("kept"),
                starts=self._view("window"),
                slots=self._destinations,
                total=self._view("total"),
            )

    def keep_states(self, at_chunks: torch.Tensor, states: torch.Tensor) -> None:
        """Keep the tracked recurrent states, after the layer has written its own.

        Args:
            at_chunks: states at the starts of chunks, of shape ``[1, chunks, heads, value, key]``.
            states: the layer's states, of shape ``[slots, heads, value, key]``.
        """
        if self.tracks:
            track_copies.states(
                at_chunks[0],
                states,
                kept=self._view("kept"),
                chunks=self._view("chunk_kept"),
                own=self.slots,
                slots=self._destinations,
            )

    def _view(self, name: str) -> torch.Tensor:
        return self._packed[self._parts[name]]

    def _write(
        self,
        staged: Any,
        lens: Sequence[int],
        prefixes: Sequence[int],
        tracked: Tracked | None,
    ) -> None:
        count = len(lens)
        length = np.asarray(lens, dtype=np.int64)

        def part(name: str) -> Any:
            return staged[self._parts[name]]

        starts = part("starts")
        starts[0] = 0
        np.cumsum(length, out=starts[1 : count + 1])
        total = int(starts[count])
        starts[count + 1 :] = total  # further requests have no tokens
        per_request = -(-length // CHUNK)
        _enumerate(part("chunks"), per_request, (0, BEYOND))
        before = part("chunk_starts")
        before[0] = 0
        np.cumsum(per_request, out=before[1 : count + 1])
        before[count + 1 :] = before[count]
        _enumerate(part("blocks"), -(-length // self._block), (NOBODY, 0))
        states = part("has_state").view(np.uint8)
        states[:count] = np.asarray(prefixes, dtype=np.int64) > 0
        states[count:] = 0
        kept = part("kept")
        kept[:] = track_copies.NOTHING
        if tracked is not None:
            chunk, window = part("chunk_kept"), part("window")
            for row in tracked.final:
                kept[row] = track_copies.FINAL
            for row, which in tracked.chunks:
                kept[row], chunk[row] = track_copies.AT_CHUNK, which
            for row, first in tracked.windows:
                window[row] = first
        part("total")[0] = total


def _enumerate(table: Any, counts: Any, unused: tuple[int, int]) -> None:
    """Write pairs of request and 0, 1, … its count - 1, one request after the other."""
    pairs = table.reshape(-1, 2)
    used = int(counts.sum())
    pairs[:used, 0] = np.repeat(np.arange(len(counts)), counts)
    pairs[:used, 1] = np.arange(used) - np.repeat(np.cumsum(counts) - counts, counts)
    pairs[used:] = unused
