"""``mlx.first-buffer``."""

from ....model.patch import Patch, Variant, Worth
from ....model.releases import between
from ..proven import PREFILL_AND_DECODE
from ..references import ATTENTION, BATCHED_DECODE, CONTIGUOUS, RUNNER


def _variant(first: str, last: str, install: str, cache: str, *, grows: bool = True) -> Variant:
    """What allocates and grows a buffer, and what creates, reuses and releases a request's.

    Args:
        first: the first release.
        last: the last one.
        install: a function of the body.
        cache: stock's class of a request's buffers.
        grows: whether stock's batched decode grows a full buffer.
    """
    write, start = f"{cache}.write_token", f"{RUNNER}.prefill_start"
    return Variant(
        releases=between(first, last),
        install=f"{__name__}.body:{install}",
        targets=(
            f"{cache}.update_and_fetch",
            f"{cache}._allocate",
            f"{cache}._grow",
            *(() if grows else (write,)),
            f"{RUNNER}._release_cache",
            *(() if grows else (start,)),
            *((f"{RUNNER}._cache_arrays",) if cache == ATTENTION else ()),
        ),
        depends=(
            *((write, start) if grows else ()),
            f"{RUNNER}._acquire_cache",
            f"{RUNNER}.remove_request",
            f"{RUNNER}._materialize_pool_backed_attention",
            f"{RUNNER}.clear",
        ),
        note="" if grows else "a batched decode also goes on past the end of a buffer",
    )


PATCH = Patch(
    id="mlx.first-buffer",
    only_with=("mlx",),
    proven_with=PREFILL_AND_DECODE,
    summary="a request's buffers start with room for its prompt, not for 4096 tokens",
    worth=Worth(
        "a",
        "4 prompts at once leave a server on a CPU with 3173 MB, not 5755 MB",
        "tests/benchmarks/results/mlx.md",
        "server-at-once",
    ),
    anchors=(BATCHED_DECODE,),
    absent_because="a request's buffers grow by 256 tokens here, as mlx-lm's own do",
    variants=(
        _variant("0.5.11", "0.5.12.post1", "install_contiguous", CONTIGUOUS, grows=False),
        _variant("0.5.13", "0.5.14", "install_attention_without_growth", ATTENTION, grows=False),
        _variant("0.5.15", "0.5.23", "install_attention", ATTENTION),
    ),
)
