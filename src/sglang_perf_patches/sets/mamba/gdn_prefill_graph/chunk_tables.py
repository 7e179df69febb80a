"""Layers that are captured whole: Triton's kernel of the delta rule, on tables of the chunks."""

from __future__ import annotations

from typing import Any

import torch
import triton

from . import FLA
from .prefill_tables import STATE_WIDTH, Tables, copy_states, cumulated, enumerate_rows

CHUNK = 64
"""Tokens of a chunk of the delta rule, as stock's ``CHUNK_SIZE``, with which it is compared."""
BEYOND = 1 << 20
"""A chunk that is past the end of any sequence: each of its loads and stores is masked."""
_TABLES = "_sglang_perf_patches_chunks"
"""On the offsets that the kernels get: the tables that they are a part of."""


def known(part: str, stock: Any) -> Any:
    """A function of stock's that finds the tables of static offsets, or computes those of a batch.

    A bucket of less than a chunk uses smaller chunks, of which each request still has one.
    """

    def prepare(cu_seqlens: Any, chunk_size: int) -> Any:
        tables = getattr(cu_seqlens, _TABLES, None)
        return stock(cu_seqlens, chunk_size) if tables is None else getattr(tables, part)

    return prepare


def tile(tokens: int) -> int:
    """Rows of the tile with which stock's ``chunk_fwd_o`` computes a prefill of so many tokens.

    A prefill of a few tokens has a smaller one, and another tile rounds otherwise.
    """
    return min(CHUNK, max(16, 1 << (tokens - 1).bit_length()))


class ChunkTables(Tables):
    """The tables of one bucket, with those of its chunks."""

    MOST = 64  # each costs every replay two programs or so a head, whether a batch has it or not

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.chunks = self._view("chunks").view(-1, 2)  # request and chunk of each chunk
        self.chunk_starts = self._view("chunk_starts")  # chunks before each request, and all
        setattr(self.starts, _TABLES, self)

    @classmethod
    def unserved(cls, backend: Any, modules: Any) -> str | None:
        """As `Tables.unserved`."""
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
