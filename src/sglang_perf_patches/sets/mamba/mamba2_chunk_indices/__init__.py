"""Computes Mamba2's logical chunks on the host, without a sync."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from itertools import accumulate

from ....model.declaration import Declaration, gains
from ..proven import ALL
from ..references import LISTS, METADATA

_MAMBA2 = f"{METADATA}:Mamba2Metadata"

PATCH = Declaration(
    *(__name__, "0.5.9 … 0.5.23"),
    only_with=("mamba2", "prefills", "torch"),
    # It reads only a prefill's lists. What is no plain or mixed prefill, whose lists the scheduler
    # passed whole, runs stock's code (`host.prefill`).
    proven_with={
        **dict.fromkeys((*ALL, "hierarchical-cache", "no-radix-cache", "mixed-chunks"), "verify"),
        **dict.fromkeys(("sessions", "other-tracking", "prefill-server", "eagle"), "verify"),
        **dict.fromkeys(("lora", "multimodal"), "verify"),
        "tensor-parallel": "tests/mamba/mamba2_rank.py: main",
    },
    worth=gains(
        "with Nemotron Nano's shape, 64 prompts get their first tokens in 0.934 of stock's time",
        "mamba.md#engine-chunks-64",
    ),
    depends=LISTS,
    anytime="it keeps nothing: what it returns are stock's values",
)

_lens: ContextVar[Sequence[int] | None] = ContextVar("lens", default=None)
"""Lengths of the batch in ``prepare_mixed``, whose chunk function does not get the batch."""


@PATCH.setup()
def setup(patch):
    from .. import host  # noqa: F401  (loaded now, so that no forward has to)

    patch.state.asks_mask = False


@PATCH.setup("0.5.14")
def setup_masked(patch):
    """It asks for prefixes of the tracked rows, by the mask."""
    patch.state.asks_mask = True


def logical(lens: Sequence[int], chunk_size: int) -> tuple[list[int], list[int]]:
    """The physical chunk of each logical one, and the token in it at which the logical one starts.

    A logical chunk starts at each physical chunk and at each sequence of a packed batch.

    >>> logical([5, 5], 8)
    ([0, 0, 1], [0, 5, 0])
    """
    ends = list(accumulate(lens))
    starts = sorted({*range(0, ends[-1], chunk_size), *ends[:-1]})
    return [start // chunk_size for start in starts], [start % chunk_size for start in starts]


@PATCH.replaces(f"{_MAMBA2}.prepare_mixed")
def prepare_mixed(cls, forward_metadata, chunk_size, forward_batch, *, patch, stock):
    """Compute the chunks from the host's lengths, and send them to the device without a wait."""
    import torch

    from .. import host

    known = host.prefill(forward_batch)
    if known is None:
        return stock(cls, forward_metadata, chunk_size, forward_batch)
    patch.ran.seen = True
    # Stock asks the prefix lengths whether there is any prefix.
    prefixes, mask = forward_batch.extend_prefix_lens, forward_batch.mamba_track_mask
    asked = copy.copy(forward_batch)
    values = known["extend_prefix_lens"]
    asked.extend_prefix_lens = torch.tensor(values, dtype=prefixes.dtype)
    if patch.state.asks_mask and mask is not None:
        asked.mamba_track_mask = mask.cpu()  # the wait that stock has here
    token = _lens.set(known["extend_seq_lens"])
    try:
        metadata = stock(cls, forward_metadata, chunk_size, asked)
    finally:
        _lens.reset(token)
    mixed = metadata.mixed_metadata
    if mixed is not None:
        (has_states,) = host.to_device([mixed.has_initial_states], prefixes.device)
        metadata.mixed_metadata = replace(mixed, has_initial_states=has_states)
    return metadata


@PATCH.replaces(f"{_MAMBA2}._query_start_loc_to_chunk_indices_offsets")
def chunk_indices_offsets(query_start_loc, chunk_size, total_seqlens, *, stock):
    import torch

    from .. import host

    lens = _lens.get()
    if lens is None or min(lens) < 1:
        return stock(query_start_loc, chunk_size, total_seqlens)
    if query_start_loc.shape != (len(lens) + 1,) or sum(lens) != total_seqlens:
        return stock(query_start_loc, chunk_size, total_seqlens)
    tensors = [torch.tensor(part, dtype=torch.int) for part in logical(lens, chunk_size)]
    return tuple(host.to_device(tensors, query_start_loc.device))
