"""``mlx.merged-cache``."""

from ....model.patch import Patch, Variant, Worth
from ....model.releases import between
from ..proven import ANY, WITHOUT_CACHE
from ..references import MLX, RUNNER

MERGE = f"{MLX}.model_runner:_merge_kv_caches"
EXTRACT = f"{MLX}.model_runner:_extract_kv_cache"

PATCH = Patch(
    id="mlx.merged-cache",
    # Without mixed chunks 0.5.10 loses requests that decode; with a radix cache it is wrong.
    only_with=("mlx",),
    proven_with=ANY | WITHOUT_CACHE | {"mixed-chunks": "tests/server/test_live_proof.py"},
    summary="the merged cache of a batch is kept across decode steps",
    worth=Worth(
        "a",
        "a decode step of 4 requests on 0.5.10.post1 takes 0.58 of the time",
        "tests/benchmarks/results/mlx.md",
        "read-old-4",
    ),
    absent_because="this release merges no caches: only 0.5.10, the first one with MLX, does",
    variants=(
        Variant(
            releases=between("0.5.10", "0.5.10.post1"),
            install=f"{__name__}.body:install",
            targets=(MERGE, EXTRACT),
            depends=(RUNNER, f"{MLX}.model_runner:MlxRequestState"),
        ),
    ),
)
