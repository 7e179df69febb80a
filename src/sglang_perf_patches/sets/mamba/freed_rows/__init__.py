"""``mamba.freed-rows``."""

from ....model.patch import Marker, Patch, Worth, variant
from ..proven import STATES

_MEMORY = "sglang.srt.mem_cache"
TRACK = "sglang.srt.managers.schedule_batch:set_mamba_track_indices_from_reqs"
_CHECK = "tests/mamba/freed_jobs.py"
_ELSEWHERE = (
    *("tensor-parallel", "expert-parallel", "dp-attention", "hierarchical-cache", "multimodal"),
    *("priorities", "lora", "deterministic", "forward-metrics", "returned-insides", "compiled"),
)
"""Each rank tracks the states of its own batch by its own slots, which none of these change."""
_DEPENDS = (
    f"{_MEMORY}.memory_pool:HybridReqToTokenPool.free_mamba_cache",
    f"{_MEMORY}.allocator.mamba:MambaSlotAllocator.clear",
)

PATCH = Patch(
    id="mamba.freed-rows",
    only_with=("states", "prefix-cache", "tracked", "speculation", "torch"),
    proven_with={
        **dict.fromkeys((*STATES, *_ELSEWHERE), "verify"),
        **dict.fromkeys(("eagle", "draft-trees"), f"{_CHECK}: with_eagle"),
        "ngram": f"{_CHECK}: with_ngram",
    },
    summary="speculation no longer tracks the state of a request that has ended",
    worth=Worth(
        "b",
        "stock's scheduler crashes, or overwrites a cached state, when a request with structured "
        "output ends",
    ),
    upstream=("sgl-project/sglang#29449",),
    upstream_note="which is open. 0.5.22 tracks no state of such a request",
    built_in_since="0.5.22",
    markers=(Marker(definition=TRACK, contains="freed_rows"),),
    absent_because="these releases keep a request's place for states after it has ended",
    variants=(
        variant(
            *(__name__, "0.5.13 … 0.5.13.post1"),
            targets=(TRACK,),
            depends=_DEPENDS,
            not_with=("ngram",),
        ),
        variant(__name__, "0.5.14 … 0.5.16", targets=(TRACK,), depends=_DEPENDS),
        variant(
            *(__name__, "0.5.17 … 0.5.21"),
            targets=(TRACK,),
            depends=_DEPENDS,
            only_with=("host-drafts",),
            note="EAGLE's verify follows a grammar by itself here: only NGRAM has the fault",
        ),
    ),
)
