"""``mamba.zero-sync``: what a prefill tracks, and its chunks, from the host's own lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .situations import refuse_platforms

if TYPE_CHECKING:
    from ...model.patching import Patching

_SCHEDULE = "sglang.srt.managers.schedule_batch:ScheduleBatch"
_BACKEND = "sglang.srt.layers.attention.hybrid_linear_attn_backend:MambaAttnBackendBase"
_RECORD = "_sglang_perf_patches_rows"
_FORWARD = "_sglang_perf_patches_forward"
"""On a backend while it makes the metadata of a forward."""

_PLAIN, _TRACK_SLOT, _CACHE_SLOT = range(3)
_FOUR = (_PLAIN, _TRACK_SLOT, _CACHE_SLOT, _TRACK_SLOT)
"""``_init_track_ssm_indices`` up to 0.5.19: h_src, h_dst, final_src, final_dst."""
_NINE = (
    *(_PLAIN, _PLAIN, _TRACK_SLOT, _PLAIN),
    *(_CACHE_SLOT, _TRACK_SLOT, _PLAIN, _PLAIN, _TRACK_SLOT),
)
"""In 0.5.20: chunk_idx, h_src, h_dst, h_batch_src, final_src, final_dst, seq_idx, end_locs,
recompute_dst."""


def install_before_decode_asks(patching: Patching) -> None:
    """0.5.9 to 0.5.10.post1: rows in lists, and queries in each layer."""
    refuse_platforms(patching)
    _record_rows(patching, _rows_from_lists)
    _compute_on_host(patching, "sglang.srt.layers.attention.fla.index", _FOUR, always=True)


def install_with_lists(patching: Patching) -> None:
    """0.5.11 to 0.5.12.post1: the scheduler appends each request's row to lists."""
    refuse_platforms(patching)
    _record_rows(patching, _rows_from_lists)
    _compute_on_host(patching, "sglang.srt.layers.attention.fla.index", _FOUR)


def install_with_entries(patching: Patching) -> None:
    """0.5.13 to 0.5.15.post1: each request's row is an entry object."""
    refuse_platforms(patching)
    _record_rows(patching, _rows_from_entries)
    _compute_on_host(patching, "sglang.srt.layers.attention.fla.index", _FOUR)


def install_with_moved_kernels(patching: Patching) -> None:
    """0.5.16 to 0.5.19: the same, with the FLA kernels in ``sglang.kernels``."""
    refuse_platforms(patching)
    _record_rows(patching, _rows_from_entries)
    _compute_on_host(patching, "sglang.kernels.ops.attention.fla.index", _FOUR)


def install_with_nine(patching: Patching) -> None:
    """0.5.20: the same, with nine index tensors instead of four."""
    refuse_platforms(patching)
    _record_rows(patching, _rows_from_entries)
    _compute_on_host(patching, "sglang.kernels.ops.attention.fla.index", _NINE)


def install_on_own_lists(patching: Patching) -> None:
    """0.5.21 on: the ForwardBatch has the lists, and stock itself makes the SSM indices of them."""
    refuse_platforms(patching)
    _compute_on_host(patching, "sglang.kernels.ops.attention.fla.index", None)


def _compute_on_host(
    patching: Patching, fla: str, layout: tuple[int, ...] | None, *, always: bool = False
) -> None:
    """Stock queries an idle device in less time than this takes, unless each layer does."""
    patching.anytime("what it leaves on a batch are stock's values, which stock's code reads too")
    _known_batches(patching, always)
    patching.override(f"{_BACKEND}._init_track_conv_indices", _conv_indices)
    if layout is not None:
        patching.override(f"{_BACKEND}._init_track_ssm_indices", _ssm_indices(layout))
    for name in ("prepare_chunk_indices", "prepare_chunk_offsets"):
        patching.override(f"{fla}:{name}", _chunks)


# -- the scheduler -------------------------------------------------------------------------------


def _record_rows(patching: Patching, record: Any) -> None:
    """Keep what the scheduler decides for each request, and attach it to the tensors it makes."""
    from . import host

    def prepare_for_extend(inner: Any) -> Any:
        def prepare_for_extend(self: Any) -> Any:
            rows: list[tuple[bool, int]] = []
            self.__dict__[_RECORD] = rows
            try:
                result = inner(self)
            finally:
                del self.__dict__[_RECORD]
            if rows:
                mask, seqlens = zip(*rows, strict=True)
                host.attach_track(self, mask, seqlens)
            return result

        return prepare_for_extend

    patching.override(f"{_SCHEDULE}.prepare_for_extend", prepare_for_extend)
    patching.override(f"{_SCHEDULE}._mamba_radix_cache_v2_req_prepare_for_extend", record)


def _rows_from_lists(inner: Any) -> Any:
    def prepare(self: Any, req: Any, mask: list[bool], indices: list[int], seqlens: Any) -> Any:
        result = inner(self, req, mask, indices, seqlens)
        rows = self.__dict__.get(_RECORD)
        if rows is not None:
            rows.append((mask[-1], seqlens[-1]))
        return result

    return prepare


def _rows_from_entries(inner: Any) -> Any:
    def prepare(self: Any, req: Any) -> Any:
        entry = inner(self, req)
        rows = self.__dict__.get(_RECORD)
        if rows is not None:
            rows.append((entry.track_mask, entry.track_seqlen))
        return entry

    return prepare


# -- the forward ---------------------------------------------------------------------------------


def _known_batches(patching: Patching, always: bool) -> None:
    """Hand stock a mask that answers from the host, and keep the lengths with their sums."""
    from . import host

    ran = patching.ran

    def forward_metadata(inner: Any) -> Any:
        def _forward_metadata(self: Any, forward_batch: Any) -> Any:
            known = None
            if always or host.is_debugging() or _waits(self, forward_batch):
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

    patching.override(f"{_BACKEND}._forward_metadata", forward_metadata)


def _waits(backend: Any, forward_batch: Any) -> bool:
    """Whether stock would wait for other work of the device."""
    from . import host

    return host.is_prefill(forward_batch) and host.is_busy(backend.device)


def _forward_of(backend: Any, forward_batch: Any) -> Any:
    """What is known of the forward whose metadata the backend is making."""
    from . import host

    held = vars(backend).get(_FORWARD)
    if held is not None and held.batch is forward_batch:
        return held
    return host.Forward(forward_batch, host.prefill(forward_batch))


def _conv_indices(inner: Any) -> Any:
    """Stock's own arithmetic, on CPU tensors made of the host's lists."""
    from . import host

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
            forward.on_cpu(known.track),
        )
        return host.to_device([indices], self.device)[0]

    return _init_track_conv_indices


def _ssm_indices(layout: tuple[int, ...]) -> Any:
    """As `_conv_indices`, with row numbers for the slots, which only the device knows."""
    from . import host

    def make(inner: Any) -> Any:
        def _init_track_ssm_indices(self: Any, mamba_cache_indices: Any, forward_batch: Any) -> Any:
            forward = _forward_of(self, forward_batch)
            known = forward.known
            if known is None or known.track is None:
                return inner(self, mamba_cache_indices, forward_batch)
            shadow = forward.on_cpu(known.track)
            rows = shadow.mamba_track_indices
            found = inner(host.backend_on_cpu(self), rows, shadow)
            moved = iter(host.to_device([t for t in found if t is not None], self.device))
            slots = {
                _TRACK_SLOT: forward_batch.mamba_track_indices,
                _CACHE_SLOT: mamba_cache_indices,
            }
            return tuple(
                tensor
                if tensor is None
                else next(moved)
                if kind == _PLAIN
                else slots[kind].index_select(0, next(moved))
                for kind, tensor in zip(layout, found, strict=True)
            )

        return _init_track_ssm_indices

    return make


# -- the chunk indices of flash linear attention -------------------------------------------------


def _chunks(inner: Any) -> Any:
    """Stock's own function, on CPU offsets; it is cached by stock's decorator as ever."""
    from . import host

    def prepare(cu_seqlens: Any, chunk_size: int) -> Any:
        lens = host.lens_of(cu_seqlens)
        if lens is None:
            return inner(cu_seqlens, chunk_size)
        if host.is_debugging():
            host.check_lens(cu_seqlens, lens)
        found = inner(host.offsets(lens, cu_seqlens.dtype), chunk_size)
        return host.to_device([found], cu_seqlens.device)[0]

    return prepare
