"""``mla.draft-extend-graph``."""

from ....model.patch import Marker, Patch, Variant
from ....model.releases import between
from ..proven import SPECULATION
from ..references import COMMON, EXTEND_GRAPH, FLASH, FLASH_MODULE, RUNNER, WORKER

GRAPHS = f"{WORKER}:EagleDraftWorker.init_cuda_graphs"
CAPTURE = f"{WORKER}:EagleDraftWorker._capture_cuda_graphs"

_BODY = f"{__name__}.body"
_DEPENDS = (
    f"{WORKER}:EagleDraftWorker.init_attention_backend",
    f"{WORKER}:EagleDraftWorker._draft_extend_for_decode",
    f"{FLASH}.__init__",
    f"{FLASH}.init_forward_metadata",
    f"{FLASH}.init_forward_metadata_capture_cuda_graph",
    f"{FLASH}.init_forward_metadata_replay_cuda_graph",
    f"{RUNNER}.replay",
    *EXTEND_GRAPH,
    f"{COMMON}:prepare_for_draft_extend",
)


def _variant(first: str, last: str, install: str, *targets: str) -> Variant:
    return Variant(
        releases=between(first, last),
        install=f"{_BODY}:{install}",
        targets=targets,
        depends=tuple(name for name in (*_DEPENDS, f"{RUNNER}.execute") if name not in targets),
        awaits=(FLASH_MODULE,),
    )


PATCH = Patch(
    id="mla.draft-extend-graph",
    only_with=("speculation",),
    # Its graph holds FlashAttention's kernels, which were compared on an H200.
    proven_with={
        name: "verify" for name in (*SPECULATION, "forward-metrics") if name != "other-gpu"
    },
    kind="policy",
    summary="FlashAttention's draft-extend is replayed from a graph instead of launched eagerly",
    upstream=("sgl-project/sglang#36324", "sgl-project/sglang#40762"),
    built_in_since="0.5.23",
    markers=(
        Marker(
            definition=CAPTURE,
            contains="graph_supported_backend_types.append(FlashAttentionBackend)",
        ),
    ),
    variants=(
        _variant("0.5.9", "0.5.9", "install_by_draft", GRAPHS),
        _variant("0.5.10", "0.5.13.post1", "install_graphs", GRAPHS),
        _variant("0.5.14", "0.5.15.post1", "install_capture", CAPTURE),
        _variant(
            *("0.5.16", "0.5.21", "install_in_graph_reads"),
            *(CAPTURE, f"{RUNNER}.can_run_graph", f"{RUNNER}.execute"),
        ),
        _variant("0.5.22", "0.5.22", "install", CAPTURE, f"{RUNNER}.can_run_graph"),
    ),
)
