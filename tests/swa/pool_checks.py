"""Checks of swa.pool-ratio over stock's own configurator of one release."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sglang_perf_patches
from sglang_perf_patches.sets.swa import growth, pool_hint, pool_ratio

MODULE = "sglang.srt.model_executor.pool_configurator"
GROUPS = ("schedule", "memory", "disagg", "spec", "parallel")

SETTINGS = {
    "max_running_requests": 64,
    "swa_full_tokens_ratio": 0.8,
    "_swa_full_tokens_ratio_explicitly_set": False,
    "chunked_prefill_size": 8192,
    "disable_radix_cache": False,
    "disable_overlap_schedule": False,
    "disaggregation_mode": "null",
    "disaggregation_decode_extra_slots": 0,
    "speculative_algorithm": None,
    "speculative_num_draft_tokens": None,
    "speculative_num_steps": None,
    "speculative_eagle_topk": None,
    "enable_unified_memory": False,
    "enable_hierarchical_cache": False,
    "swa_prefix_tails": None,
    "pp_size": 1,
    "dp_size": 1,
    "attn_tp_size": 1,
    "page_size": 1,
    "kv_cache_dtype": "auto",
}


def pools(
    available: int, *, window: int, page_size: int, full: int, windowed: int, **changed: Any
) -> tuple[Any, Any]:
    """What the release's factory and configurator make of a budget, and the configurator.

    Args:
        available: bytes for KV.
        window: in tokens.
        page_size: in tokens.
        full: layers that attend to everything.
        windowed: layers within the window.
        changed: arguments other than `SETTINGS`.
    """
    module = importlib.import_module(MODULE)
    arguments = SimpleNamespace(**{**SETTINGS, "page_size": page_size, **changed})
    kept = {name: vars(module)[name] for name in _patched(module)}
    try:
        for name in kept:
            setattr(module, name, _stand_in(name, arguments))
        runner = _runner(arguments, window, page_size, full, windowed)
        with _settings(arguments):
            configurator = module.create_memory_pool_configurator(runner)
            return configurator.calculate_pool_sizes(available, page_size), configurator
    finally:
        for name, value in kept.items():
            setattr(module, name, value)


def ratio_is_derived(examples: int = 200) -> dict[str, int]:
    """Random budgets: both pools fit, the smaller holds what it must, the larger is no smaller.

    Compared with stock's own configurator that is given the same ratio as the operator's: the same
    pools but for a page, by which the sum of two products may differ in its last digit.
    """
    loads = _loads(examples)
    sglang_perf_patches.deactivate()
    stock = [_or_refused(*load) for load in loads]
    sglang_perf_patches.activate("swa.pool-ratio")
    found = [_or_refused(*load) for load in loads]
    sglang_perf_patches.deactivate()
    counts = {"derived": 0, "stock": 0, "refused": 0, "by stock's cap": 0}
    for (available, load), plain, ours in zip(loads, stock, found, strict=True):
        if plain is None:
            counts["refused"] += 1
            continue
        assert ours is not None, f"{available}, {load}: stock makes pools of this"
        configurator = ours[1]
        if type(configurator).__name__ != "HybridSWAPoolConfigurator":
            assert _sizes(ours[0]) == _sizes(plain[0])
            counts["by stock's cap"] += 1
            continue
        ratio = configurator._swa_full_tokens_ratio
        if ratio == pool_hint.STOCK_RATIO:
            assert _sizes(ours[0]) == _sizes(plain[0])
            counts["stock"] += 1
            continue
        counts["derived"] += 1
        full, swa = _sizes(ours[0])
        page = load["page_size"]
        assert full >= _sizes(plain[0])[0], "the full pool shrank"
        wants = configurator._swa_needs
        least = 0 if load["disable_radix_cache"] else load["max_running_requests"]
        assert swa >= wants.with_tails(least), "too small a pool"
        assert swa <= _sizes(plain[0])[1]
        cells = _cells(plain[1])
        assert full * cells[0] + swa * cells[1] <= available, "more than the budget"
        told, _ = pools(available, **load | {"swa_full_tokens_ratio": ratio})
        apart = [abs(a - b) for a, b in zip(_sizes(told), _sizes(ours[0]), strict=True)]
        assert max(apart) <= page, "stock at this ratio makes other pools"
    assert counts["derived"], "no budget was one that the ratio is derived for"
    return counts


def _loads(examples: int) -> list[tuple[int, dict[str, Any]]]:
    """Budgets and arguments, drawn by hypothesis: the same ones each time."""
    drawn: list[tuple[int, dict[str, Any]]] = []

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        available=st.integers(1 << 30, 1 << 37),
        window=st.sampled_from((128, 512, 1024, 4096)),
        page_size=st.sampled_from((1, 16, 64)),
        layers=st.sampled_from(((12, 12), (10, 52), (4, 20), (18, 18))),
        requests=st.integers(1, 600),
        radix_off=st.booleans(),
    )
    def draw(
        available: int,
        window: int,
        page_size: int,
        layers: tuple[int, int],
        requests: int,
        radix_off: bool,
    ) -> None:
        load = {"window": window, "page_size": page_size, "full": layers[0], "windowed": layers[1]}
        more = {"max_running_requests": requests, "disable_radix_cache": radix_off}
        drawn.append((available, load | more))

    draw()
    return drawn


def _or_refused(available: int, load: dict[str, Any]) -> tuple[Any, Any] | None:
    """The pools of a budget; None where it is too small for stock."""
    try:
        return pools(available, **load)
    except (RuntimeError, ValueError):
        return None


def the_cap_is_stocks(page_size: int = 1) -> int:
    """Where the release has ``compute_swa_request_cap``: the same sum."""
    module = importlib.import_module(MODULE)
    if not hasattr(module, "compute_swa_request_cap"):
        return 0
    count = 0
    for window in (128, 1024):
        for requests in (1, 8, 300):
            arguments = SimpleNamespace(**{**SETTINGS, "max_running_requests": requests})
            kept = {name: vars(module)[name] for name in _patched(module)}
            try:
                for name in kept:
                    setattr(module, name, _stand_in(name, arguments))
                runner = _runner(arguments, window, page_size, 12, 12)
                with _settings(arguments):
                    wants = pool_ratio.needs(runner)
                    cap = module.compute_swa_request_cap(
                        page_size=page_size, window=window, attn_dp_size=1
                    )
            finally:
                for name, value in kept.items():
                    setattr(module, name, value)
            assert wants.running == cap, (wants.running, cap)
            count += 1
    return count


def left_to_stock(page_size: int = 1) -> int:
    """Each of these alone leaves stock's ratio."""
    load = {"window": 128, "page_size": page_size, "full": 12, "windowed": 12}
    budget = 40 << 30
    sglang_perf_patches.activate("swa.pool-ratio")
    _, served = pools(budget, **load)
    assert served._swa_full_tokens_ratio < 0.2, served._swa_full_tokens_ratio
    alone: tuple[dict[str, Any], ...] = (
        {"swa_full_tokens_ratio": 0.5},
        {"max_running_requests": None},
        {"chunked_prefill_size": -1},
        {"disaggregation_mode": "prefill"},
        {"disaggregation_mode": "decode"},
        {"pp_size": 2},
        {"enable_hierarchical_cache": True},
    )
    for changed in alone:
        found, configurator = pools(budget, **load, **changed)
        ratio = changed.get("swa_full_tokens_ratio", 0.8)
        assert configurator._swa_full_tokens_ratio == ratio, changed
        sglang_perf_patches.deactivate()
        assert _sizes(pools(budget, **load, **changed)[0]) == _sizes(found)
        sglang_perf_patches.activate("swa.pool-ratio")
    return len(alone)


def by_tokens_too(page_size: int = 1) -> None:
    """A limit on the tokens, as ``--max-total-tokens`` sets: the same sliding-window pool."""
    load = {"window": 128, "page_size": page_size, "full": 12, "windowed": 12}
    sglang_perf_patches.activate("swa.pool-ratio")
    found, configurator = pools(40 << 30, **load)
    limited = configurator.calculate_pool_sizes_from_max_tokens(_sizes(found)[0] // 2, page_size)
    assert _sizes(limited)[0] == _sizes(found)[0] // 2 // page_size * page_size
    wants = configurator._swa_needs
    assert wants.with_tails(64) <= _sizes(limited)[1] < 0.8 * _sizes(limited)[0]
    tiny = configurator.calculate_pool_sizes_from_max_tokens(4096, page_size)
    assert _sizes(tiny) == (4096, int(4096 * 0.8) // page_size * page_size), "stock's own ratio"


def the_hint_is_what_the_patch_does() -> None:
    """`pool_hint.hint` says of a model's configuration what the patch makes of it."""
    budget, requests = 40 << 30, 64
    config = {
        "num_hidden_layers": 24,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
    }
    # Releases differ in how often they evict.
    interval = growth.eviction_interval(128, 1) + growth.kept_margin(1)
    told = pool_hint.hint(config, requests=requests, kv_bytes=budget, interval=interval)
    sglang_perf_patches.activate("swa.pool-ratio")
    load = {"window": 128, "page_size": 1, "full": 12, "windowed": 12}
    found, configurator = pools(budget, **load, max_running_requests=requests)
    assert told.ratio == configurator._swa_full_tokens_ratio
    assert abs(told.full - _sizes(found)[0]) <= 2
    sglang_perf_patches.deactivate()
    assert told.full_stock == _sizes(pools(budget, **load)[0])[0]


def _sizes(config: Any) -> tuple[int, int]:
    return int(config.full_max_total_num_tokens), int(config.swa_max_total_num_tokens)


def _cells(configurator: Any) -> tuple[float, float]:
    a_token = configurator._full_per_token, configurator._swa_per_token
    return (
        a_token[0] * configurator._full_layers_num,
        a_token[1] * configurator._swa_layers_num,
    )


def _patched(module: Any) -> list[str]:
    """Names of the module that ask for the process's own arguments or ranks."""
    names = [f"get_{group}" for group in GROUPS]
    return [name for name in [*names, "get_attention_tp_size"] if name in vars(module)]


def _stand_in(name: str, arguments: Any) -> Any:
    return (lambda: 1) if name == "get_attention_tp_size" else (lambda: arguments)


class _settings:  # noqa: N801 - reads as what it does
    """The groups of arguments of the process, where the release has them."""

    def __init__(self, arguments: Any) -> None:
        self._arguments, self._kept = arguments, {}

    def __enter__(self) -> None:
        try:
            from sglang.srt import runtime_context as module
        except ImportError:
            return
        self._module = module
        for name in (f"get_{group}" for group in GROUPS):
            if hasattr(module, name):
                self._kept[name] = getattr(module, name)
                setattr(module, name, lambda: self._arguments)

    def __exit__(self, *_: object) -> None:
        for name, value in self._kept.items():
            setattr(self._module, name, value)


def _runner(arguments: Any, window: int, page_size: int, full: int, windowed: int) -> Any:
    """In the place of a ``ModelRunner``, later a ``KVCacheConfigurator``: what is read of it."""
    import torch

    layers = list(range(full + windowed))
    model = SimpleNamespace(
        full_attention_layer_ids=layers[:full],
        swa_attention_layer_ids=layers[full:],
        head_dim=64,
        v_head_dim=64,
        swa_head_dim=64,
        swa_v_head_dim=64,
        attention_arch=None,
        hf_config=SimpleNamespace(architectures=["GptOssForCausalLM"]),
        hf_text_config=SimpleNamespace(),
        get_num_kv_heads=lambda _: 8,
        get_swa_num_kv_heads=lambda _: 8,
    )
    algorithm = SimpleNamespace(
        is_none=lambda: True,
        is_eagle=lambda: False,
        is_standalone=lambda: False,
        is_dflash=lambda: False,
        is_dflash_family=lambda: False,
    )
    given = arguments
    if "get_schedule" in vars(importlib.import_module(MODULE)):
        # What the operator gave; what follows from it is in the groups.
        given = SimpleNamespace(**dict.fromkeys(SETTINGS) | {"pp_size": arguments.pp_size})
    return SimpleNamespace(
        server_args=given,
        model_config=model,
        layer_info=model,
        kv_cache_dtype=torch.bfloat16,
        kv_cache_dtype_str="auto",
        sliding_window_size=window,
        page_size=page_size,
        is_hybrid_swa=True,
        is_draft_worker=False,
        spec_algorithm=algorithm,
        spec_aux_config=SimpleNamespace(eagle_draft_num_layers=None),
        dp_size=1,
        attn_dp_size=1,
        ps=SimpleNamespace(attn_dp_size=1, attn_tp_size=1),
        dflash_draft_cell_size_per_token=None,
        fused_entry_bytes=lambda _: None,
    )


CHECKS = {
    check.__name__: check
    for check in (
        ratio_is_derived,
        the_cap_is_stocks,
        left_to_stock,
        by_tokens_too,
        the_hint_is_what_the_patch_does,
    )
}
