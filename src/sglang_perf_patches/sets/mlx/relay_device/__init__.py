"""On a Mac, keeps the tokens that pass between steps on the device that reads them.

Stock makes the relay between two steps on the server's device, which is ``mps`` on a Mac. Under MLX
the indices are those of the request pool, which is on the CPU, and the tokens come from MLX by way
of the CPU.
"""

from ....model.declaration import Declaration, fixes
from ..proven import HYBRIDS
from ..references import ENVIRONMENT

_OVERLAP = "sglang.srt.managers.overlap_utils"
_RESOLVES = f"{_OVERLAP}:resolve_forward_inputs"

PATCH = Declaration(
    *(__name__, "0.5.13 … 0.5.23"),
    only_with=("mlx",),
    proven_with=HYBRIDS,
    worth=fixes(
        "without overlap scheduling, stock's scheduler crashes on a Mac if it decodes two requests"
    ),
    upstream_note="sgl-project/sglang#39281 reports this crash",
    anchors=(_RESOLVES,),
    absent_because="these releases pass tokens between steps in another way",
    depends=(_RESOLVES, f"{ENVIRONMENT}:Envs.SGLANG_USE_MLX"),
    awaits=(ENVIRONMENT,),
    anytime="a scheduler makes its relay once",
)


@PATCH.replaces(f"{_OVERLAP}:FutureMap.__init__")
def init(self, device, algorithm, pool, *needs, patch, stock):
    if patch.module(ENVIRONMENT).envs.SGLANG_USE_MLX.get():
        device = pool.req_to_token.device
        patch.ran.seen = True
    stock(self, device, algorithm, pool, *needs)
