"""Speculation no longer tracks the state of a request that has ended.

Where a step's results are taken before the next step is launched, a request that ends with them is
still in that next batch. It has no place for states any more. 0.5.13 to 0.5.15.post1 fail to make a
tensor of that; later releases take the first slot that it had, which the prefix cache may own now.
"""

from ....model.declaration import Declaration, fixes
from ....model.patch import Marker
from ..proven import OWN_SLOTS, STATES
from ..references import holder

_MEMORY = "sglang.srt.mem_cache"
_TRACK = "sglang.srt.managers.schedule_batch:set_mamba_track_indices_from_reqs"
_CHECK = "tests/mamba/freed_jobs.py"

PATCH = Declaration(
    *(__name__, "0.5.13 … 0.5.21"),
    only_with=("states", "prefix-cache", "tracked", "speculation", "torch"),
    proven_with={
        **dict.fromkeys((*STATES, *OWN_SLOTS), "verify"),
        **dict.fromkeys(("hierarchical-cache", "multimodal", "priorities"), "verify"),
        **dict.fromkeys(("eagle", "draft-trees"), f"{_CHECK}: with_eagle"),
        "ngram": f"{_CHECK}: with_ngram",
    },
    worth=fixes(
        "stock's scheduler crashes, or overwrites a cached state, when a request with structured "
        "output ends"
    ),
    upstream=("sgl-project/sglang#29449",),
    upstream_note="which is open. 0.5.22 tracks no state of such a request",
    built_in_since="0.5.22",
    markers=(Marker(definition=_TRACK, contains="freed_rows"),),
    absent_because="these releases keep a request's place for states after it has ended",
    depends=(
        f"{_MEMORY}.memory_pool:HybridReqToTokenPool.free_mamba_cache",
        f"{_MEMORY}.allocator.mamba:MambaSlotAllocator.clear",
    ),
    anytime="it keeps nothing between two calls",
)
PATCH.on("… 0.5.13.post1", not_with=("ngram",))
PATCH.on(
    "0.5.17 …",
    only_with=("host-drafts",),
    note="EAGLE's verify follows a grammar by itself here: only NGRAM has the fault",
)

_DUMMY = 0
"""The slot that stock reserves for what rows of padding write."""


@PATCH.replaces(_TRACK)
def set_mamba_track_indices_from_reqs(batch, *planned, patch, stock):
    holders = [holder(req) for req in batch.reqs]
    freed = [row for row, each in enumerate(holders) if each.mamba_next_track_idx is None]
    try:
        for row in freed:
            holders[row].mamba_next_track_idx = 0  # any that can be looked up
        stock(batch, *planned)
    finally:
        for row in freed:
            holders[row].mamba_next_track_idx = None
    for row in freed:  # one by one: a list of rows would make the host wait for the GPU
        batch.mamba_track_indices[row] = _DUMMY
        patch.ran.seen = True
