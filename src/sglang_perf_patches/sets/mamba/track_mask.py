"""``mamba.track-mask``: which rows of a prefill are tracked, in one query a forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .situations import refuse_platforms

if TYPE_CHECKING:
    from ...model.patching import Patching

_HYBRID = "sglang.srt.layers.attention.hybrid_linear_attn_backend"
_METADATA = "sglang.srt.layers.attention.mamba.mamba2_metadata:ForwardMetadata"


def install(patching: Patching) -> None:
    """Add the three names to ``ForwardMetadata``, and let each layer read the result of one query.

    The layers of these releases ask ``forward_batch.mamba_track_mask`` itself, so they are handed
    that mask with the answers on it (`host.KnownMask`).
    """
    refuse_platforms(patching)
    from . import host

    ran = patching.ran

    def forward_metadata(inner: Any) -> Any:
        def _forward_metadata(self: Any, forward_batch: Any) -> Any:
            metadata = inner(self, forward_batch)
            mask = forward_batch.mamba_track_mask
            if mask is None or not host.is_prefill(forward_batch):
                return metadata
            ran.seen = True
            # Stock has just queried the device; this attribute shows the answer.
            has = metadata.track_conv_indices is not None
            rows = mask.nonzero(as_tuple=True)[0] if has else ()
            metadata.has_mamba_track_mask = has
            if has:
                metadata.mamba_track_mask_indices = rows
                metadata.conv_states_mask_indices = forward_batch.mamba_track_indices[rows]
            if not isinstance(mask, host.KnownMask):
                forward_batch.mamba_track_mask = host.KnownMask.with_rows(mask, has, rows)
            return metadata

        return _forward_metadata

    patching.override(f"{_HYBRID}:MambaAttnBackendBase._forward_metadata", forward_metadata)
    patching.add(f"{_METADATA}.has_mamba_track_mask", False)
    patching.add(f"{_METADATA}.mamba_track_mask_indices", None)
    patching.add(f"{_METADATA}.conv_states_mask_indices", None)
