"""``mla.draft-extend-metadata``."""

from ....model.patch import Patch, Variant, Worth
from ....model.releases import between
from ..proven import METADATA
from ..references import EXTEND_GRAPH, FLASH_MODULE, RUNNER, WORKER

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
    # It came with the graph of FlashAttention's draft-extend, in the same method.
    anchors=(f"{WORKER}:_select_spec_graph_runner_cls",),
    absent_because="before 0.5.23 stock captures no graph of FlashAttention's draft-extend",
    variants=(
        Variant(
            releases=between("0.5.23", "0.5.23"),
            install=f"{__name__}.body:install",
            targets=(f"{RUNNER}.execute",),
            depends=(*EXTEND_GRAPH, f"{WORKER}:EagleDraftWorker._capture_cuda_graphs"),
            awaits=(FLASH_MODULE,),
        ),
    ),
)
