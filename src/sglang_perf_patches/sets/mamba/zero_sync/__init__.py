"""``mamba.zero-sync``."""

from ....model.patch import Marker, Patch, Worth, of, variant
from ..proven import ALL, RANKS
from ..references import BASE, GDN, HYBRID, METADATA

PATCH = Patch(
    id="mamba.zero-sync",
    only_with=("states", "prefills", "torch", "tracked"),
    proven_with=dict.fromkeys((*ALL, *RANKS, "mixed-chunks", "no-radix-cache"), "verify"),
    summary="a prefill asks the GPU once which states are tracked, not in each layer",
    worth=Worth("c", "sgl-project/sglang#20522"),
    upstream=("sgl-project/sglang#20522",),
    built_in_since="0.5.11",
    markers=(Marker(definition=f"{METADATA}:ForwardMetadata", contains="has_mamba_track_mask"),),
    variants=(
        variant(
            *(__name__, "0.5.9 … 0.5.10.post1"),
            targets=(f"{BASE}._forward_metadata",),
            depends=(
                *of(BASE, "_init_track_conv_indices", "_init_track_ssm_indices"),
                f"{BASE}._track_mamba_state_extend",
                # The second one is 0.5.9's.
                f"{GDN}.forward_extend",
                f"{HYBRID}:GDNAttnBackend.forward_extend",
            ),
        ),
    ),
)
