"""``mlx.relay-device``."""

from ....model.patch import Patch, Worth, variant
from ..proven import HYBRIDS
from ..references import ENVIRONMENT

RESOLVES = "sglang.srt.managers.overlap_utils:resolve_forward_inputs"
MAKES = "sglang.srt.managers.overlap_utils:FutureMap.__init__"

PATCH = Patch(
    id="mlx.relay-device",
    only_with=("mlx",),
    proven_with=HYBRIDS,
    summary="on a Mac, keeps the tokens that pass between steps on the device that reads them",
    worth=Worth(
        "b",
        "without overlap scheduling, stock's scheduler crashes on a Mac if it decodes two requests",
    ),
    upstream_note="sgl-project/sglang#39281 reports this crash",
    anchors=(RESOLVES,),
    absent_because="these releases pass tokens between steps in another way",
    variants=(
        variant(
            *(__name__, "0.5.13 … 0.5.23"),
            targets=(MAKES,),
            depends=(RESOLVES,),
            awaits=(ENVIRONMENT,),
        ),
    ),
)
