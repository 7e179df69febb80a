"""``swa.window-bounded-admission``."""

from ....model.patch import Patch, Variant, of
from ....model.releases import between
from ..proven import DECODING
from ..references import ADMITTED, DECODE, EVICTS, QUEUE, STOCK_RULE

_CHANGED = of(
    QUEUE,
    "_prealloc_kv_lens",
    "_prealloc_required_tokens",
    "_swa_tail_allocatable_token_budget",
    "_check_if_req_exceed_kv_capacity",
)

PATCH = Patch(
    id="swa.window-bounded-admission",
    only_with=("windows", "decode-server"),
    proven_with=DECODING,
    kind="policy",
    summary="admission counts a request by what its window lets it hold",
    anchors=ADMITTED,
    requires=("swa.tail-prealloc",),
    variants=(
        Variant(
            releases=between("0.5.9", "0.5.11"),
            install=f"{__name__}.body:install",
            targets=(),
            adds=(f"{QUEUE}._swa_peak_tokens",),
            depends=(*ADMITTED, *EVICTS),
            awaits=(DECODE,),
        ),
        Variant(
            releases=between("0.5.12", "0.5.23"),
            install=f"{__name__}.body:install_in_stock_rule",
            targets=_CHANGED,
            depends=(
                *(name for name in STOCK_RULE if name not in _CHANGED),
                f"{QUEUE}._swa_retractable_len",
                *EVICTS,
                f"{DECODE}:CLIP_MAX_NEW_TOKEN",
            ),
        ),
    ),
)
