"""``swa.pool-ratio``."""

from ....model.patch import Patch, of, variant
from ..proven import BESIDE
from ..references import EVICTS

CONFIGURATORS = "sglang.srt.model_executor.pool_configurator"
CONFIGURATOR = f"{CONFIGURATORS}:HybridSWAPoolConfigurator"
CAP = "compute_swa_request_cap"
"""Stock's sum of what running requests hold, from 0.5.21 on."""

PATCH = Patch(
    id="swa.pool-ratio",
    # What stock calls no window pool may be one that `swa.window-pool` gives.
    # Without a prefix cache stock sizes the pool by the requests.
    only_with=("windows", "torch", "prefix-cache", "request-limit", "stock-window-ratio"),
    proven_with=BESIDE | dict.fromkeys(("pages", "no-window-pool"), "verify"),
    kind="policy",
    summary="sizes the sliding-window pool by the running requests and the window",
    anchors=(f"{CONFIGURATORS}:{CAP}",),
    absent_because="tested only on 0.5.21 and later",
    variants=(
        variant(
            *(__name__, "0.5.21 … 0.5.23"),
            targets=of(
                CONFIGURATOR,
                "__init__",
                "calculate_pool_sizes",
                "calculate_pool_sizes_from_max_tokens",
            ),
            depends=(
                *of(CONFIGURATOR, "_solve_pool_sizes", "_recompute_cell_size", "_swa_cell_bytes"),
                f"{CONFIGURATORS}:{CAP}",
                f"{CONFIGURATORS}:create_memory_pool_configurator",
                *EVICTS,
            ),
        ),
    ),
)
