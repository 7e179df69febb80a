"""``mamba.zero-sync``."""

from ....model.patch import Marker, Patch, Worth, of, variant
from ..proven import ALL, RANKS
from ..references import (
    ATTENTION,
    BASE,
    GDN,
    HYBRID,
    LISTS,
    METADATA,
    RECORDED,
    chunk_depends,
    chunk_targets,
)

FLA = f"{ATTENTION}.fla"

PATCH = Patch(
    id="mamba.zero-sync",
    only_with=("states", "prefills"),
    proven_with=dict.fromkeys((*ALL, *RANKS, "mixed-chunks", "no-radix-cache"), "verify"),
    summary="builds a prefill's mamba metadata from the host's lists, without a sync",
    worth=Worth("c", "sgl-project/sglang#20522"),
    upstream=("sgl-project/sglang#20522",),
    upstream_note="which queries the GPU once per forward. This patch never does",
    built_in_since="0.5.11",
    markers=(Marker(definition=f"{METADATA}:ForwardMetadata", contains="has_mamba_track_mask"),),
    variants=(
        variant(
            *(__name__, "0.5.9 … 0.5.10.post1"),
            targets=(
                *RECORDED,
                *of(BASE, "_init_track_ssm_indices", "_forward_metadata"),
                f"{BASE}._init_track_conv_indices",
                *chunk_targets(FLA),
            ),
            depends=(
                *LISTS,
                f"{BASE}._track_mamba_state_extend",
                f"{METADATA}:ForwardMetadata",
                *chunk_depends(FLA),
                # The second one is 0.5.9's.
                f"{GDN}.forward_extend",
                f"{HYBRID}:GDNAttnBackend.forward_extend",
            ),
        ),
    ),
)
