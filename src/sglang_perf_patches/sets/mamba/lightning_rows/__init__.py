"""``mamba.lightning-rows``."""

from ....model.patch import Patch, Variant, Worth
from ....model.releases import between
from ..proven import ALL, RANKS
from ..references import ATTENTION, BASE, BATCH, FORWARD_BATCH, LISTS, RECORDED, SCHEDULE

BACKEND = f"{ATTENTION}.linear.lightning_backend:LightningAttentionBackend"

_TARGETS = (f"{BACKEND}.forward_extend", f"{BACKEND}._prefill_and_mix_infer")
_TRACK_STORE = f"{BACKEND}._prepare_seg_la_track_store"
_ENTRY = f"{SCHEDULE}:_MambaRadixCacheV2TrackEntry"
# They fill and keep the lists that a batch has since 0.5.21.
_OWN_LISTS = (
    f"{BASE}._has_cpu_prefill_track_metadata",
    f"{BATCH}.prepare_for_extend",
    f"{BATCH}.mix_with_running",
    f"{FORWARD_BATCH}.mamba_track_aligned_lens",
)


def _variant(
    first: str, last: str, install: str, targets: tuple[str, ...], *depends: str
) -> Variant:
    return Variant(
        releases=between(first, last),
        install=f"{__name__}.body:{install}",
        targets=targets,
        depends=(
            *depends,
            *LISTS,
            f"{BACKEND}.init_forward_metadata",
            f"{ATTENTION}.linear.linear_metadata:BailingLinearMetadata",
        ),
    )


PATCH = Patch(
    id="mamba.lightning-rows",
    only_with=("states", "other-states", "prefills", "torch"),
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
        _variant("0.5.10", "0.5.12.post1", "install_for_minimax", _TARGETS),
        _variant("0.5.13", "0.5.16", "install", (*RECORDED, *_TARGETS), _ENTRY),
        _variant(
            *("0.5.17", "0.5.20", "install_with_track_store"),
            (*RECORDED, *_TARGETS, _TRACK_STORE),
            _ENTRY,
        ),
        _variant(
            *("0.5.21", "0.5.23", "install_on_own_lists"), (*_TARGETS, _TRACK_STORE), *_OWN_LISTS
        ),
    ),
)
