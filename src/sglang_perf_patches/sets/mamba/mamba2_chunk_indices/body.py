"""``mamba.mamba2-chunk-indices``: Mamba2's logical chunks, from the host's own lengths."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from itertools import accumulate
from typing import Any

from ....model.patching import Patching
from . import MAMBA2

_lens: ContextVar[Sequence[int] | None] = ContextVar("lens", default=None)
"""Lengths of the batch in ``prepare_mixed``, whose chunk function does not get the batch."""


def install(patching: Patching) -> None:
    """Compute the chunks from the host's lengths, and send them to the device without a wait."""
    _install(patching)


def install_masked(patching: Patching) -> None:
    """As `install`, for 0.5.14, which asks for prefixes of the tracked rows, by the mask."""
    _install(patching, asks_mask=True)


def logical(lens: Sequence[int], chunk_size: int) -> tuple[list[int], list[int]]:
    """The physical chunk of each logical one, and the token in it at which the logical one starts.

    A logical chunk starts at each physical chunk and at each sequence of a packed batch.

    >>> logical([5, 5], 8)
    ([0, 0, 1], [0, 5, 0])
    """
    ends = list(accumulate(lens))
    starts = sorted({*range(0, ends[-1], chunk_size), *ends[:-1]})
    return [start // chunk_size for start in starts], [start % chunk_size for start in starts]


def _install(patching: Patching, *, asks_mask: bool = False) -> None:
    import torch

    from .. import host

    patching.anytime("it keeps nothing: what it returns are stock's values")
    ran = patching.ran

    def prepare(inner: Any) -> Any:
        def prepare_mixed(
            cls: Any, forward_metadata: Any, chunk_size: int, forward_batch: Any
        ) -> Any:
            known = host.prefill(forward_batch)
            if known is None:
                return inner(cls, forward_metadata, chunk_size, forward_batch)
            ran.seen = True
            # Stock asks the prefix lengths whether there is any prefix.
            prefixes, mask = forward_batch.extend_prefix_lens, forward_batch.mamba_track_mask
            asked = copy.copy(forward_batch)
            asked.extend_prefix_lens = torch.tensor(
                known["extend_prefix_lens"], dtype=prefixes.dtype
            )
            if asks_mask and mask is not None:
                asked.mamba_track_mask = mask.cpu()  # the wait that stock has here
            token = _lens.set(known["extend_seq_lens"])
            try:
                metadata = inner(cls, forward_metadata, chunk_size, asked)
            finally:
                _lens.reset(token)
            mixed = metadata.mixed_metadata
            if mixed is not None:
                (has_states,) = host.to_device([mixed.has_initial_states], prefixes.device)
                metadata.mixed_metadata = replace(mixed, has_initial_states=has_states)
            return metadata

        return classmethod(prepare_mixed)

    def chunks(inner: Any) -> Any:
        def _query_start_loc_to_chunk_indices_offsets(
            query_start_loc: Any, chunk_size: int, total_seqlens: int
        ) -> Any:
            lens = _lens.get()
            if (
                lens is None
                or query_start_loc.shape != (len(lens) + 1,)
                or sum(lens) != total_seqlens
                or min(lens) < 1
            ):
                return inner(query_start_loc, chunk_size, total_seqlens)
            tensors = [torch.tensor(part, dtype=torch.int) for part in logical(lens, chunk_size)]
            return tuple(host.to_device(tensors, query_start_loc.device))

        return staticmethod(_query_start_loc_to_chunk_indices_offsets)

    patching.override(f"{MAMBA2}.prepare_mixed", prepare)
    patching.override(f"{MAMBA2}._query_start_loc_to_chunk_indices_offsets", chunks)
