"""``mamba.lightning-rows``."""

from ....model.patch import Patch, Worth, of, variant
from ..proven import ALL, RANKS
from ..references import ATTENTION, BASE, FORWARD_BATCH, LISTS

BACKEND = f"{ATTENTION}.linear.lightning_backend:LightningAttentionBackend"

_TARGETS = (f"{BACKEND}.forward_extend", f"{BACKEND}._prefill_and_mix_infer")
_TRACK_STORE = f"{BACKEND}._prepare_seg_la_track_store"
# They fill and keep the lists that a batch has since 0.5.21.
_OWN_LISTS = (
    f"{BASE}._has_cpu_prefill_track_metadata",
    *of(
        "sglang.srt.managers.schedule_batch:ScheduleBatch",
        *("prepare_for_extend", "mix_with_running"),
    ),
    f"{FORWARD_BATCH}.mamba_track_aligned_lens",
)


_DEPENDS = (
    *LISTS,
    f"{BACKEND}.init_forward_metadata",
    f"{ATTENTION}.linear.linear_metadata:BailingLinearMetadata",
)

PATCH = Patch(
    id="mamba.lightning-rows",
    only_with=("lightning", "prefills", "torch"),
    gain_with="tracked prefix-cache",
    proven_with=dict.fromkeys((*ALL, *RANKS), "verify"),
    summary="lightning-attention prefills select their tracked rows on the host, once per forward",
    worth=Worth(
        "a",
        "with a 16B Ling's shape, 16 prompts get their first tokens in 0.877 of stock's time",
        "tests/benchmarks/results/mamba.md",
        "engine-rows-16",
    ),
    absent_because="this release has no lightning-attention backend of this kind",
    anchors=_TARGETS,
    variants=(
        variant(
            *(__name__, "0.5.10 … 0.5.12.post1", "install_for_minimax"),
            only_with=("minimax-kernel",),
            targets=_TARGETS,
            depends=_DEPENDS,
        ),
        variant(__name__, "0.5.13 … 0.5.16", targets=_TARGETS, depends=_DEPENDS),
        variant(
            *(__name__, "0.5.17 … 0.5.23", "install_with_track_store"),
            only_with=("planned-tracks",),
            targets=(*_TARGETS, _TRACK_STORE),
            depends=(*_OWN_LISTS, *_DEPENDS),
        ),
    ),
)
