"""What a captured gated-delta-net prefill reads: tables of a fixed size, filled before each replay.

A breakable prefill graph is captured once for a number of tokens, its *bucket*, and replayed for
every batch that fits. The grids of the kernels are those of the capture, so they span the most rows
that a batch of that many tokens can have. A row that a batch does not use is marked, and its
program returns or writes nothing.

`Tables` has what the convolution reads. `ChunkTables` adds what Triton's kernel of the delta rule
reads, so layers are captured whole; `kernel_break.BreakTables` is for FlashInfer's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from .. import host
from . import FLA, TABLES

NOBODY = -1
"""What stock's kernels take for no slot, and for no request of a block."""

NOTHING, FINAL, AT_CHUNK = 0, 1, 2
"""What is kept of a row: nothing, the state after its last token, or, from `AT_CHUNK` on, the state
at the start of a chunk: ``AT_CHUNK + n`` for the batch's chunk `n`."""

WINDOW_WIDTH, STATE_WIDTH = 1024, 8192
"""Values that one program copies: most programs find nothing to copy, so they are few."""

CHUNK = 64
"""Tokens of a chunk of the delta rule, as stock's ``CHUNK_SIZE``, with which it is compared."""
BEYOND = 1 << 20
"""A chunk that is past the end of any sequence: each of its loads and stores is masked."""


@dataclass(frozen=True)
class Tracked:
    """The states of a batch that the prefix cache keeps, for each of its requests."""

    kept: list[int]  # what is kept of it, see `NOTHING`
    windows: list[int]  # token of the batch where its window starts; maybe outside, as in stock
    slots: torch.Tensor  # where its states are kept, int64 of shape ``[batch]`` on the device


class Tables:
    """The tables of one bucket, of `tokens`.

    A batch has `requests` at most, and may track states if `tracks`. `block` is the tokens
    of a block of the convolution. The slots are as `slots_like`; all else is in one int32 tensor.
    The class method ``unserved(backend, modules)`` of each kind says why a backend's kernel can't
    run on its tables; None if it can.
    """

    MOST = 0  # the most requests of a batch that tables of this kind hold

    def __init__(
        self, *, tokens: int, requests: int, block: int, tracks: bool, slots_like: torch.Tensor
    ) -> None:
        self.tokens = tokens
        self.requests = requests = max(1, min(tokens, requests))  # each request has a token
        self.tracks = tracks
        self._block = block
        sizes = self._sizes()
        ends = dict(zip(sizes, accumulate(sizes.values()), strict=True))
        self._parts = {name: slice(ends[name] - size, ends[name]) for name, size in sizes.items()}
        # One tensor for all parts: a fill is one copy.
        self._packed = torch.zeros(sum(sizes.values()), dtype=torch.int32, device=slots_like.device)
        self.starts = self._view("starts")  # ``query_start_loc``, of shape ``[requests + 1]``
        self.blocks = self._view("blocks").view(-1, 2)  # request and block of each block
        self.has_state = self._view("has_state").view(torch.bool)[:requests]  # has a cached prefix
        self.slots = slots_like.new_full((requests,), NOBODY)  # where each request's states are
        self._destinations = self.slots.new_zeros(requests, dtype=torch.int64)
        self.layers: list[int] = []  # those that were captured on these tables
        self.alone = True  # whether a batch that does not fit has no other graph
        self.has_one = False  # whether the batch has a graph of its own, see `OneRequest`

    @classmethod
    def most(cls, backend: Any, modules: Any) -> int:
        """The most requests of a batch; `modules` returns an imported module by its name."""
        return min(cls.MOST, int(backend.req_to_token_pool.size))

    @staticmethod
    def rounds_alike(tokens: int, bucket: int) -> bool:
        """Whether so many tokens in the bucket give the bits that they give by themselves."""
        return True

    def begin(self, backend: Any, forward_batch: Any, tokens: int) -> torch.Tensor:
        """Translate a batch's slots as stock does before its layers; returns the requests' own."""
        pool, translate = backend.req_to_token_pool, backend._translate_mamba_indices
        if forward_batch.mamba_track_indices is not None:
            forward_batch.mamba_track_indices = translate(forward_batch.mamba_track_indices)
        slots: torch.Tensor = translate(pool.get_mamba_indices(forward_batch.req_pool_indices))
        return slots

    def kernel(self, backend: Any, modules: Any) -> Any:
        """The kernel of the delta rule that a captured layer calls."""
        return backend.kernel_dispatcher.extend_kernel

    def prepare_one(self, backend: Any, modules: Any) -> bool:
        """Prepare for a second capture, see `OneRequest`; False if there is to be none."""
        return False

    def keep_states(self, at_chunks: torch.Tensor, states: torch.Tensor) -> None:
        """Keep the tracked recurrent states within the graph.

        `at_chunks` has states at the starts of chunks, of shape ``[1, chunks, heads, value, key]``.
        `states` has the layer's, of shape ``[slots, heads, value, key]``, after it wrote its own.
        """

    def _sizes(self) -> dict[str, int]:
        """How many int32 each part of `_packed` has."""
        return {
            "starts": self.requests + 1,
            "blocks": 2 * (-(-self.tokens // self._block) + self.requests),
            "has_state": -(-self.requests // 4),
            "kept": self.requests,
            "window": self.requests,
            "total": 1,
        }

    def holds(self, tokens: int, requests: int) -> bool:
        """Whether a batch can be replayed, bit by bit; one without requests is an idle rank's."""
        if not tokens:
            return not requests
        if tokens > self.tokens or requests > self.requests:
            return False
        return self.rounds_alike(tokens, self.tokens)

    def fill(
        self, lens: list[int], prefixes: list[int], slots: torch.Tensor, tracked: Tracked | None
    ) -> None:
        """Write a batch into the tables: one copy to the device for all of them, and no wait.

        A request has `lens` new tokens behind its prefix, and its states in `slots`, of shape
        ``[batch]`` on the device.

        Raises:
            ValueError: the batch does not fit.
        """
        count, tokens = len(lens), sum(lens)
        if not self.holds(tokens, count):
            raise ValueError(
                f"{count} requests of {tokens} tokens do not fit {self.requests} of {self.tokens}"
            )
        with host.staging(self._packed) as staged:
            parts = {name: staged[part] for name, part in self._parts.items()}
            self._write(parts, np.asarray(lens, dtype=np.int64), prefixes, tracked)
        self.slots[:count].copy_(slots)
        self.slots[count:].fill_(NOBODY)  # also where a failed fill, or anybody else, left a slot
        if tracked is not None:
            self._destinations[:count].copy_(tracked.slots)

    def keep_windows(self, mixed: torch.Tensor, conv: torch.Tensor) -> None:
        """Keep the tracked windows of a layer's convolution.

        `mixed` is its input, of shape ``[tokens, width]``; `conv` has its states, of shape
        ``[slots, width, window]``.
        """
        if self.tracks:
            width, window = conv.shape[1:]
            grid = (self.requests, triton.cdiv(width, WINDOW_WIDTH))
            copy_windows[grid](
                *(mixed, conv, self._view("kept"), self._view("window"), self._destinations),
                *(self._view("total"), *mixed.stride(), *conv.stride(), width),
                window=window,
                part=WINDOW_WIDTH,
            )

    def _view(self, name: str) -> torch.Tensor:
        return self._packed[self._parts[name]]

    def _write(
        self, parts: dict[str, Any], lens: Any, prefixes: list[int], tracked: Tracked | None
    ) -> None:
        count = len(lens)
        parts["starts"][:] = cumulated(lens, self.requests)  # further requests have no tokens
        parts["total"][0] = lens.sum()
        enumerate_rows(parts["blocks"], -(-lens // self._block), (NOBODY, 0))
        states = parts["has_state"].view(np.uint8)
        states[:count] = np.asarray(prefixes, dtype=np.int64) > 0
        states[count:] = 0
        parts["kept"][:] = NOTHING
        if tracked is not None:
            parts["kept"][:count] = tracked.kept
            parts["window"][:count] = tracked.windows


class ChunkTables(Tables):
    """The tables of one bucket, with those of its chunks."""

    MOST = 64  # each costs every replay two programs or so a head, whether a batch has it or not

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.chunks = self._view("chunks").view(-1, 2)  # request and chunk of each chunk
        self.chunk_starts = self._view("chunk_starts")  # chunks before each request, and all
        setattr(self.starts, TABLES, self)

    @classmethod
    def unserved(cls, backend: Any, modules: Any) -> str | None:
        """As for `Tables`."""
        for name in ("chunk", "chunk_delta_h"):
            tokens = modules(f"{FLA}.{name}").CHUNK_SIZE
            if tokens != CHUNK:
                return f"stock's chunks have {tokens} tokens; ours have {CHUNK}"
        return None

    @classmethod
    def most(cls, backend: Any, modules: Any) -> int:
        """No more than stock's own for KDA."""
        stocks = modules("sglang.srt.environ").envs.SGLANG_KDA_PREFILL_GRAPH_MAX_SEQS.get()
        return min(super().most(backend, modules), int(stocks))

    @staticmethod
    def rounds_alike(tokens: int, bucket: int) -> bool:
        """As `Tables.rounds_alike`."""
        return tile(tokens) == tile(bucket)

    def keep_states(self, at_chunks: torch.Tensor, states: torch.Tensor) -> None:
        """As `Tables.keep_states`."""
        if self.tracks:
            size: Any = states[0].numel()
            grid = (self.requests, triton.cdiv(size, STATE_WIDTH))
            copy_states[grid](
                *(at_chunks[0], states, self._view("kept"), self.slots, self._destinations),
                *(at_chunks.stride(1), states.stride(0), size),
                part=STATE_WIDTH,
                num_warps=8,
            )

    def _sizes(self) -> dict[str, int]:
        chunks = -(-self.tokens // CHUNK) + self.requests
        return {**super()._sizes(), "chunks": 2 * chunks, "chunk_starts": self.requests + 1}

    def _write(self, parts: dict[str, Any], lens: Any, *rest: Any) -> None:
        super()._write(parts, lens, *rest)
        chunks = -(-lens // CHUNK)
        enumerate_rows(parts["chunks"], chunks, (0, BEYOND))
        parts["chunk_starts"][:] = cumulated(chunks, self.requests)


def tile(tokens: int) -> int:
    """Rows of the tile with which stock's ``chunk_fwd_o`` computes a prefill of so many tokens.

    A prefill of a few tokens has a smaller one, and another tile rounds otherwise.
    """
    return min(CHUNK, max(16, 1 << (tokens - 1).bit_length()))


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


# Stock selects the tracked rows first, so the shapes of its copies are the batch's, and a graph
# can't hold them. Here the grids are of fixed size: each row holds what of it is kept, and a row
# without anything to keep returns. Nothing is computed: values are copied, and rounded to the
# states' dtype as stock's assignment does.


@triton.jit  # type: ignore[untyped-decorator]
def copy_windows(
    mixed,
    conv,
    kept,
    starts,
    slots,
    total,
    token_stride,
    input_stride,
    slot_stride,
    width_stride,
    window_stride,
    width,
    window: tl.constexpr,
    part: tl.constexpr,
):
    """Copy the convolution window of each tracked row: see `Tables.keep_windows`."""
    row = tl.program_id(0)
    if tl.load(kept + row) == 0:
        return
    slot = tl.load(slots + row).to(tl.int64)
    start = tl.load(starts + row)
    last = tl.load(total) - 1  # tokens outside of the batch are its first or last, as in stock
    at = tl.program_id(1) * part + tl.arange(0, part)
    is_there = at < width
    for position in tl.static_range(window):
        token = tl.minimum(tl.maximum(start + position, 0), last).to(tl.int64)
        value = tl.load(mixed + token * token_stride + at * input_stride, mask=is_there)
        to = conv + slot * slot_stride + at * width_stride + position * window_stride
        tl.store(to, value.to(conv.dtype.element_ty), mask=is_there)


@triton.jit  # type: ignore[untyped-decorator]
def copy_states(
    at_chunks, states, kept, own, slots, chunk_stride, slot_stride, size, part: tl.constexpr
):
    """Copy the recurrent state of each tracked row: see `Tables.keep_states`."""
    row = tl.program_id(0)
    what = tl.load(kept + row)
    if what == 0:
        return
    slot = tl.load(slots + row).to(tl.int64)
    at = tl.program_id(1) * part + tl.arange(0, part)
    is_there = at < size
    to = states + slot * slot_stride + at
    if what == 1:
        source = tl.load(own + row).to(tl.int64)
        tl.store(to, tl.load(states + source * slot_stride + at, mask=is_there), mask=is_there)
    else:
        chunk = (what - 2).to(tl.int64)
        value = tl.load(at_chunks + chunk * chunk_stride + at, mask=is_there)
        tl.store(to, value.to(states.dtype.element_ty), mask=is_there)
