"""``swa.evict-before-retract``."""

from ....model.patch import Patch, Variant, of
from ....model.releases import between
from ..proven import DECODING, DRAFTS
from ..references import BATCH, COMMON, EVICT_WINDOWS, EVICTS, REQUEST

PATCH = Patch(
    id="swa.evict-before-retract",
    only_with=("windows",),
    proven_with=DECODING | DRAFTS,
    kind="policy",
    summary="KV behind the window is freed before a running request is retracted",
    upstream=("sgl-project/sglang#28246",),
    anchors=(f"{BATCH}._evict_swa",),
    variants=(
        Variant(
            releases=between("0.5.9", "0.5.23"),
            install=f"{__name__}.body:install",
            targets=(f"{BATCH}.check_decode_mem",),
            depends=(
                *EVICTS,
                *of(BATCH, "retract_decode", "new_tokens_required_next_decode", "release_req"),
                f"{REQUEST}.reset_for_retract",
                "sglang.srt.managers.scheduler:Scheduler.update_running_batch",
                f"{COMMON}:free_swa_out_of_window_slots",
                EVICT_WINDOWS,
            ),
        ),
    ),
)
