"""A prefill asks the GPU once which states are tracked, not in each layer.

Upstream's change keeps the answer in the metadata. Here the mask itself keeps it, so that the
layers' code stays as it is.
"""

from ....model.declaration import Declaration, ports
from ....model.patch import Marker, of
from ..proven import ALL, RANKS
from ..references import BASE, GDN, HYBRID, METADATA

PATCH = Declaration(
    *(__name__, "0.5.9 … 0.5.10.post1"),
    only_with=("states", "prefills", "torch", "tracked"),
    proven_with=dict.fromkeys((*ALL, *RANKS, "mixed-chunks", "no-radix-cache"), "verify"),
    worth=ports("sgl-project/sglang#20522"),
    upstream=("sgl-project/sglang#20522",),
    built_in_since="0.5.11",
    markers=(Marker(definition=f"{METADATA}:ForwardMetadata", contains="has_mamba_track_mask"),),
    depends=(
        *of(BASE, "_init_track_conv_indices", "_init_track_ssm_indices"),
        f"{BASE}._track_mamba_state_extend",
        # The second one is 0.5.9's.
        f"{GDN}.forward_extend",
        f"{HYBRID}:GDNAttnBackend.forward_extend",
    ),
    anytime="what it leaves on a batch are stock's values, which stock's code reads too",
)


@PATCH.replaces(f"{BASE}._forward_metadata")
def _forward_metadata(self, forward_batch, *, patch, stock):
    from ..host import is_prefill

    mask = forward_batch.mamba_track_mask
    if mask is not None and is_prefill(forward_batch):
        patch.ran.seen = True
        _keep_answers(mask)
    return stock(self, forward_batch)


def _keep_answers(mask):
    """Ask a boolean mask, shape ``[batch]``, for its rows; from now on it answers by itself."""
    import torch

    rows = mask.nonzero(as_tuple=True)
    is_any = torch.tensor(bool(rows[0].numel()))
    # Attributes of the object come before the methods of its class. These are stock's two calls.
    mask.any = lambda: is_any
    mask.nonzero = lambda *, as_tuple: rows if as_tuple else rows[0][:, None]
