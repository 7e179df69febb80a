"""``mamba.zero-sync``: what a prefill tracks, and its chunks, from the host's own lists."""

from __future__ import annotations

from typing import Any

from ....model.patching import Patching
from .. import track_rows
from ..references import BASE
from . import FLA

_FORWARD = "_sglang_perf_patches_forward"
"""Attribute of a backend while it makes a forward's metadata: a `host.Forward`."""

_TRACK_SLOT, _CACHE_SLOT = range(2)
_LAYOUT = (None, _TRACK_SLOT, _CACHE_SLOT, _TRACK_SLOT)
"""For each tensor of ``_init_track_ssm_indices`` (h_src, h_dst, final_src, final_dst), which slots
it has; None if it has rows."""


def install(patching: Patching) -> None:
    """0.5.9 to 0.5.10.post1: rows in lists, and queries in each layer."""
    patching.anytime("what it leaves on a batch are stock's values, which stock's code reads too")
    track_rows.record(patching, track_rows.from_lists)
    _known_batches(patching)
    patching.override(f"{BASE}._init_track_conv_indices", _conv_indices)
    patching.override(f"{BASE}._init_track_ssm_indices", _ssm_indices)
    for name in ("prepare_chunk_indices", "prepare_chunk_offsets"):
        patching.override(f"{FLA}.index:{name}", _chunks)


# -- the forward ---------------------------------------------------------------------------------


def _known_batches(patching: Patching) -> None:
    """Give stock a mask that answers from the host, and attach the lengths to their sums."""
    from .. import host

    ran = patching.ran

    def forward_metadata(inner: Any) -> Any:
        def _forward_metadata(self: Any, forward_batch: Any) -> Any:
            known = host.prefill(forward_batch)
            track = None if known is None else known.track
            mask = forward_batch.mamba_track_mask
            if track is not None and not isinstance(mask, host.KnownMask):
                # Keep it in the batch, for the layers that read it.
                forward_batch.mamba_track_mask = host.KnownMask.of(mask, track.mask)
            vars(self)[_FORWARD] = host.Forward(forward_batch, known)
            try:
                metadata = inner(self, forward_batch)
            finally:
                del vars(self)[_FORWARD]
            if known is None:
                return metadata
            ran.seen = True
            host.attach_lens(metadata.query_start_loc, known.lens)
            return metadata

        return _forward_metadata

    patching.override(f"{BASE}._forward_metadata", forward_metadata)


def _forward_of(backend: Any, forward_batch: Any) -> Any:
    """The `host.Forward` of a batch: that of `_known_batches`, or a new one."""
    from .. import host

    held = vars(backend).get(_FORWARD)
    if held is not None and held.batch is forward_batch:
        return held
    return host.Forward(forward_batch, host.prefill(forward_batch))


def _conv_indices(inner: Any) -> Any:
    """Stock's own arithmetic, on CPU tensors made of the host's lists."""
    from .. import host

    def _init_track_conv_indices(
        self: Any, query_start_loc: Any, forward_batch: Any, *rest: Any
    ) -> Any:
        forward = _forward_of(self, forward_batch)
        known = forward.known
        if known is None or known.track is None:
            return inner(self, query_start_loc, forward_batch, *rest)
        # `rest` is the tracked rows on the device; without it stock selects them by the mask.
        indices = inner(
            host.backend_on_cpu(self),
            host.offsets(known.lens, query_start_loc.dtype),
            forward.on_cpu,
        )
        return host.to_device([indices], self.device)[0]

    return _init_track_conv_indices


def _ssm_indices(inner: Any) -> Any:
    """As `_conv_indices`; slots are only on the device, so stock computes with row numbers."""
    from .. import host

    def _init_track_ssm_indices(self: Any, mamba_cache_indices: Any, forward_batch: Any) -> Any:
        forward = _forward_of(self, forward_batch)
        known = forward.known
        if known is None or known.track is None:
            return inner(self, mamba_cache_indices, forward_batch)
        shadow = forward.on_cpu
        rows = shadow.mamba_track_indices
        indices = inner(host.backend_on_cpu(self), rows, shadow)
        moved = iter(host.to_device([t for t in indices if t is not None], self.device))
        slots = {
            _TRACK_SLOT: forward_batch.mamba_track_indices,
            _CACHE_SLOT: mamba_cache_indices,
        }
        return tuple(
            tensor
            if tensor is None
            else next(moved)
            if kind is None
            else slots[kind].index_select(0, next(moved))
            for kind, tensor in zip(_LAYOUT, indices, strict=True)
        )

    return _init_track_ssm_indices


# -- the chunk indices of flash linear attention -------------------------------------------------


def _chunks(inner: Any) -> Any:
    """Stock's own function on CPU offsets; stock's decorator still caches its result."""
    from .. import host

    def prepare(cu_seqlens: Any, chunk_size: int) -> Any:
        lens = host.lens_of(cu_seqlens)
        if lens is None:
            return inner(cu_seqlens, chunk_size)
        if host.is_debugging():
            host.check_lens(cu_seqlens, lens)
        indices = inner(host.offsets(lens, cu_seqlens.dtype), chunk_size)
        return host.to_device([indices], cu_seqlens.device)[0]

    return prepare
