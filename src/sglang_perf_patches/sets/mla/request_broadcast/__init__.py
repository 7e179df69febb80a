"""``mla.request-broadcast``."""

from ....model.patch import Patch, Worth, of, variant
from ..proven import REQUESTS

RECEIVER = "sglang.srt.managers.scheduler_components.request_receiver:SchedulerRequestReceiver"
BROADCAST = f"{RECEIVER}._broadcast_reqs_across_ranks"

_SINCE = "sglang.srt.runtime_context:attn_dp_enabled_of"
_RANKS = "sglang.srt.distributed.parallel_state:GroupCoordinator"
_QUEUE = "sglang.srt.distributed.device_communicators.shm_broadcast"

PATCH = Patch(
    id="mla.request-broadcast",
    only_with=("speculation", "ranks", "one-host", "own-processes", "polling"),
    proven_with=REQUESTS,
    gain_with="eagle",
    summary="tensor-parallel ranks hear of new requests through shared memory, not through gloo",
    worth=Worth(
        "a",
        "MTP on two GPUs: 2.646 ms per token of one request become 2.319",
        "tests/benchmarks/results/mla.md",
        "broadcast-1",
    ),
    upstream=("sgl-project/sglang#39470", "sgl-project/sglang#39471"),
    anchors=(_SINCE,),
    absent_because=(
        "up to 0.5.21 the receiver of requests finds its ranks in other ways, for which the patch "
        "was not written"
    ),
    variants=(
        variant(
            *(__name__, "0.5.22 … 0.5.23"),
            targets=(BROADCAST,),
            depends=(
                f"{RECEIVER}._finalize_shm_features",
                "sglang.srt.managers.mm_utils:ShmPointerMMData",
                "sglang.srt.utils.common:broadcast_pyobj",
                *of(_RANKS, "__init__", "broadcast_object"),
                f"{_QUEUE}:MessageQueue",
                f"{_QUEUE}:ShmRingBuffer",
            ),
        ),
    ),
)
