"""``mamba.zero-sync``: a prefill asks the GPU once which requests are tracked, not in each layer.

Upstream's change keeps the answer in the metadata. Here the mask itself keeps it, so that the
layers' code stays as it is.
"""

from __future__ import annotations

from typing import Any

from ....model.patching import Patching
from ..references import BASE


def install(patching: Patching) -> None:
    """0.5.9 to 0.5.10.post1, whose layers each ask the mask."""
    from .. import host

    patching.anytime("what it leaves on a batch are stock's values, which stock's code reads too")
    ran = patching.ran

    def make(inner: Any) -> Any:
        def _forward_metadata(self: Any, forward_batch: Any) -> Any:
            mask = forward_batch.mamba_track_mask
            if mask is not None and host.is_prefill(forward_batch):
                ran.seen = True
                _keep_answers(mask)
            return inner(self, forward_batch)

        return _forward_metadata

    patching.override(f"{BASE}._forward_metadata", make)


def _keep_answers(mask: Any) -> None:
    """Ask a boolean mask, shape ``[batch]``, for its rows; from now on it answers by itself."""
    import torch

    rows = mask.nonzero(as_tuple=True)
    is_any = torch.tensor(bool(rows[0].numel()))
    # Attributes of the object come before the methods of its class. These are stock's two calls.
    mask.any = lambda: is_any
    mask.nonzero = lambda *, as_tuple: rows if as_tuple else rows[0][:, None]
