"""``mla.draft-extend-metadata``."""

from ....model.patch import Patch, Variant, Worth
from ....model.releases import between
from ..proven import METADATA
from ..references import EXTEND_GRAPH, EXTEND_KERNEL, FLASH_MODULE, RUNNER

PATCH = Patch(
    id="mla.draft-extend-metadata",
    only_with=("speculation",),
    proven_with=dict.fromkeys((*METADATA, "forward-metrics"), "verify"),
    summary="the graph of FlashAttention's draft-extend builds its metadata once, not twice",
    worth=Worth(
        "a",
        "time per token of 16 requests, a small target on one H200, takes 0.945",
        "tests/benchmarks/results/mla.md",
        "metadata-16",
    ),
    anchors=(EXTEND_KERNEL,),
    absent_because="before 0.5.16 no graph writes the metadata",
    variants=(
        Variant(
            releases=between("0.5.16", "0.5.23"),
            install=f"{__name__}.body:install",
            targets=(f"{RUNNER}.execute",),
            depends=EXTEND_GRAPH,
            awaits=(FLASH_MODULE,),
        ),
    ),
)
