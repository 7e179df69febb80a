"""Checks of swa.pool-ratio over stock's own configurator of one release."""

import gc
from importlib import import_module
from typing import Any

import sglang_perf_patches
from sglang_perf_patches.verify.stock import publish_server as publish
from tests.proof.swa.pools import pools, sizes


def left_to_stock(page_size: int = 1) -> int:
    """Each of these alone keeps stock's ratio."""
    load = {"window": 128, "page_size": page_size, "full": 12, "windowed": 12}
    budget = 40 << 30
    _put_on()
    _, served = pools(budget, **load)
    assert served._swa_full_tokens_ratio < 0.2, served._swa_full_tokens_ratio
    alone: tuple[dict[str, Any], ...] = (
        {"swa_full_tokens_ratio": 0.5},
        {"max_running_requests": None},
        {"chunked_prefill_size": -1},
    )
    for changed in alone:
        pool_sizes, configurator = pools(budget, **load, **changed)
        ratio = changed.get("swa_full_tokens_ratio", 0.8)
        assert configurator._swa_full_tokens_ratio == ratio, changed
        sglang_perf_patches.deactivate()
        assert sizes(pools(budget, **load, **changed)[0]) == sizes(pool_sizes)
        _put_on()
    return len(alone)


def by_tokens_too(page_size: int = 1) -> None:
    """With a limit on the tokens, as ``--max-total-tokens`` sets: the same sliding-window pool."""
    load = {"window": 128, "page_size": page_size, "full": 12, "windowed": 12}
    _put_on()
    pool_sizes, configurator = pools(40 << 30, **load)
    limited = configurator.calculate_pool_sizes_from_max_tokens(
        sizes(pool_sizes)[0] // 2, page_size
    )
    assert sizes(limited)[0] == sizes(pool_sizes)[0] // 2 // page_size * page_size
    wants = configurator._swa_needs
    assert wants.with_tails(64) <= sizes(limited)[1] < 0.8 * sizes(limited)[0]
    tiny = configurator.calculate_pool_sizes_from_max_tokens(4096, page_size)
    assert sizes(tiny) == (4096, int(4096 * 0.8) // page_size * page_size), "stock's own ratio"


def the_hint_is_what_the_patch_does(page_size: int = 1, requests: int = 64) -> None:
    """`examples/size_pools.py` says of a model's configuration what the patch does with it."""
    budget = 40 << 30
    config = {
        "num_hidden_layers": 24,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
    }
    size_pools: Any = import_module("examples.size_pools")  # the checkout is on the path
    server = size_pools.Server(40, requests, page_size=page_size)
    told, full_stock = size_pools.window_pools(config, server)
    assert told is not None
    _put_on()
    load = {"window": 128, "page_size": page_size, "full": 12, "windowed": 12}
    pool_sizes, configurator = pools(budget, **load, max_running_requests=requests)
    assert told.ratio == configurator._swa_full_tokens_ratio
    assert abs(told.full - sizes(pool_sizes)[0]) <= 2 * page_size
    sglang_perf_patches.deactivate()
    assert abs(full_stock - sizes(pools(budget, **load)[0])[0]) < page_size


def _put_on() -> None:
    """Have only this patch live, on an ordinary server, whatever was live before."""
    sglang_perf_patches.deactivate()
    gc.collect()  # patches stay while requests of earlier checks do
    sglang_perf_patches.deactivate()
    publish(max_running_requests=64)
    sglang_perf_patches.activate("swa.pool-ratio")
