"""``mlx.hybrid-cache``."""

from ....model.patch import Patch, Variant, Worth, of, variant
from ..proven import HYBRIDS
from ..references import MLX, RUNNER, STATES_SINCE, STOCKS, STOCKS_BEFORE

_MEMORY = "sglang.srt.mem_cache"
STATES = f"{MLX}.kv_cache.auxiliary_state"
COMPONENT = f"{STATES}:MlxAuxiliaryStateComponent"
ARRAYS = f"{STATES}:_arrays_in_tree"
POOL = f"{STATES}:MlxAuxiliaryStateReqToTokenPool.__init__"
GROUPS = (
    f"{STATES}:MlxAuxiliaryStatePool.alloc_group_begin",
    f"{STATES}:MlxAuxiliaryStatePool.alloc_group_end",
)
RELEASE = f"{MLX}.tp_worker:MlxTpModelWorker.prepare_for_kv_cache_release"
BACKENDS = "sglang.srt.model_executor.model_runner:ModelRunner.init_attention_backends"
ALLOC = f"{_MEMORY}.allocation:alloc_req_slots"
CONTEXT = "sglang.srt.runtime_context"
TREES = f"{_MEMORY}.base_prefix_cache"

_UNIFIED = f"{_MEMORY}.unified_radix_cache:UnifiedRadixCache"


def _variant(
    spans: str,
    install: str,
    component: str,
    targets: tuple[str, ...] = (),
    adds: tuple[str, ...] = (),
) -> Variant:
    """A variant for releases in which stock's class `component` owns states."""
    return variant(
        *(__name__, spans, install),
        targets=(
            *of(COMPONENT, "__init__", "prepare_for_caching_req"),
            f"{component}.finalize_match_result_in_cache",
            ALLOC,
            *targets,
        ),
        depends=(
            f"{component}.__init__",
            f"{COMPONENT}.cleanup_after_caching_req",
            ARRAYS,
            f"{STATES}:MlxAuxiliaryStatePool",
            f"{STATES}:MlxAuxiliaryStateReqToTokenPool",
            *of(_UNIFIED, "match_prefix", "evict", "mamba_evictable_size"),
            *of(RUNNER, "_restore_auxiliary_state", "_store_tracked_auxiliary_state"),
            *of(RUNNER, "_sync_decode_kv_to_pool", "_get_auxiliary_state_pool"),
        ),
        adds=adds,
        awaits=(CONTEXT, TREES),
    )


PATCH = Patch(
    id="mlx.hybrid-cache",
    only_with=("mlx", "states"),
    # Without a prefix cache too: 0.5.17 does not start at all.
    proven_with=HYBRIDS,
    summary="hybrid models run on MLX with the radix cache, and reuse cached prefixes",
    worth=Worth(
        "b", "with a hybrid model and the radix cache, stock's MLX server crashes in its warm-up"
    ),
    anchors=STATES_SINCE,
    absent_because="before 0.5.17 hybrids on MLX have other faults",
    variants=(
        _variant(
            *("0.5.17", "install_without_backend", STOCKS_BEFORE, (BACKENDS, RELEASE, POOL)),
            adds=GROUPS,
        ),
        _variant(
            *("0.5.18", "install_with_allocator", STOCKS_BEFORE, (RELEASE, POOL)), adds=GROUPS
        ),
        _variant("0.5.19", "install_before_move", STOCKS_BEFORE, (RELEASE,)),
        _variant("0.5.20 … 0.5.21", "install_before_rows", STOCKS, (RELEASE,)),
        _variant("0.5.22 … 0.5.23", "install", STOCKS),
    ),
)
