"""``swa.idle-admission``."""

from ....model.patch import Patch, Worth, of, variant
from ..proven import DECODING, IDLE_RANKS, TREES
from ..references import ADMITTED, BATCH, DECODE, EVICTS, QUEUE, STOCK_RULE

# What a request needs until its end, and what can make room for it.
_DECODES = (
    *EVICTS,
    *of(BATCH, "retract_decode", "new_tokens_required_next_decode"),
    f"{DECODE}:DecodeReqToTokenPool.available_size",
)

PATCH = Patch(
    id="swa.idle-admission",
    only_with=("window-pool", "decode-server", "drafts-of-one"),
    proven_with=DECODING | IDLE_RANKS | TREES,
    summary="an idle decode server admits a request that fits its sliding-window pool",
    worth=Worth("b", "stock never answers some requests that fit an idle decode server's pool"),
    anchors=ADMITTED,
    requires=("swa.tail-prealloc",),
    variants=(
        variant(
            *(__name__, "0.5.9 … 0.5.11"),
            targets=(),
            adds=(f"{QUEUE}._swa_peak_tokens",),
            depends=(*ADMITTED, *_DECODES),
            awaits=(DECODE,),
        ),
        variant(
            *(__name__, "0.5.12 … 0.5.23", "install_in_stock_rule"),
            targets=of(QUEUE, "_prealloc_kv_lens", "_prealloc_required_tokens"),
            depends=(*STOCK_RULE, *_DECODES, f"{DECODE}:CLIP_MAX_NEW_TOKEN"),
        ),
    ),
)
