"""``mamba.mamba2-chunk-indices``: Mamba2's logical chunks, from the host's own lengths."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from itertools import accumulate
from typing import Any

from ....model.patching import Patching
from . import MAMBA2

_lens: ContextVar[tuple[int, ...] | None] = ContextVar("lens", default=None)
"""Lengths of the batch in ``prepare_mixed``, whose chunk function does not get the batch."""


def install(patching: Patching) -> None:
    """Compute the chunks from the host's lengths, and send them to the device in one copy."""
    _install(patching, _with_prefixes)


def install_masked(patching: Patching) -> None:
    """As `install`, for 0.5.14, which looks for prefixes in the track mask too."""
    _install(patching, _with_prefixes_and_mask)


def logical(lens: Sequence[int], chunk_size: int) -> tuple[list[int], list[int]]:
    """The physical chunk of each logical one, and the token in it at which the logical one starts.

    A logical chunk starts at each physical chunk and at each sequence of a packed batch.

    >>> logical([5, 5], 8)
    ([0, 0, 1], [0, 5, 0])
    """
    ends = list(accumulate(lens))
    starts = sorted({*range(0, ends[-1], chunk_size), *ends[:-1]})
    return [start // chunk_size for start in starts], [start % chunk_size for start in starts]


def _install(patching: Patching, ask_cpu: Callable[[Any, Any], Any]) -> None:
    import torch

    from .. import host

    patching.anytime("it keeps nothing: what it returns are stock's values")
    ran = patching.ran

    def prepare(inner: Any) -> Any:
        def prepare_mixed(
            cls: Any, forward_metadata: Any, chunk_size: int, forward_batch: Any
        ) -> Any:
            known = host.prefill(forward_batch)
            if known is not None and len(known.lens) == 1:
                # Only three queries are saved, and an idle device answers them at once.
                known = known if host.is_busy(forward_batch.extend_prefix_lens.device) else None
            if known is None:
                return inner.__get__(None, cls)(forward_metadata, chunk_size, forward_batch)
            ran.seen = True
            asked = ask_cpu(forward_batch, known)
            token = _lens.set(known.lens)
            try:
                metadata = inner.__get__(None, cls)(forward_metadata, chunk_size, asked)
            finally:
                _lens.reset(token)
            mixed = metadata.mixed_metadata
            if mixed is not None and asked is not forward_batch:
                device = forward_batch.extend_prefix_lens.device
                (has_states,) = host.to_device([mixed.has_initial_states], device)
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
                return inner.__func__(query_start_loc, chunk_size, total_seqlens)
            if host.is_debugging():
                host.check_lens(query_start_loc, lens)
            tensors = [torch.tensor(part, dtype=torch.int) for part in logical(lens, chunk_size)]
            return tuple(host.to_device(tensors, query_start_loc.device))

        return staticmethod(_query_start_loc_to_chunk_indices_offsets)

    patching.override(f"{MAMBA2}.prepare_mixed", prepare)
    patching.override(f"{MAMBA2}._query_start_loc_to_chunk_indices_offsets", chunks)


def _with_prefixes(forward_batch: Any, known: Any) -> Any:
    """A copy with prefix lengths on the CPU: stock asks them whether there is any prefix."""
    import torch

    shadow = copy.copy(forward_batch)
    dtype = forward_batch.extend_prefix_lens.dtype
    shadow.extend_prefix_lens = torch.tensor(known.prefixes, dtype=dtype)
    return shadow


def _with_prefixes_and_mask(forward_batch: Any, known: Any) -> Any:
    """As `_with_prefixes`, with the track mask too; the batch itself if that is not known."""
    import torch

    mask = forward_batch.mamba_track_mask
    if mask is not None and known.track is None:
        return forward_batch
    shadow = _with_prefixes(forward_batch, known)
    if mask is not None:
        shadow.mamba_track_mask = torch.tensor(known.track.mask, dtype=mask.dtype)
    return shadow
