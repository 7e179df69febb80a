"""swa.pool-ratio: the sliding-window pool is sized by requests and window, not by a fixed ratio.

Stock does so for DeepSeek-V4 (``DSV4PoolConfigurator``), and for other models if the prefix
cache is off (``SWAChunkCapPoolConfigurator``, later ``SWARequestCapPoolConfigurator``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ....model.patching import Patching, replaces
from ..growth import setting
from . import CAP, CONFIGURATOR, CONFIGURATORS, sizes

logger = logging.getLogger("sglang_perf_patches")


def install(patching: Patching) -> None:
    """Give stock's own arithmetic another ratio, if the operator set none."""
    patching.anytime("pools keep the sizes that they were made with, whoever computed them")
    cap = getattr(patching.module(CONFIGURATORS), CAP)

    @replaces(patching, f"{CONFIGURATOR}.__init__")
    def init(self: Any, runner: Any, *args: Any, inner: Any, **kwargs: Any) -> None:
        inner(self, runner, *args, **kwargs)
        self._swa_stock = (self._swa_full_tokens_ratio, self._cell_size)
        reason = unserved(self, runner)
        self._swa_needs = None if reason else needs(runner, cap)
        if reason:
            patching.gate(reason)

    @replaces(patching, f"{CONFIGURATOR}.calculate_pool_sizes")
    def calculate_pool_sizes(
        self: Any, available_bytes: int, *args: Any, inner: Any, **kwargs: Any
    ) -> Any:
        pools = None
        if self._swa_needs is not None:
            ratio, cell = self._swa_stock
            swa_cell = swa_cell_bytes(self)
            pools = sizes.fit(
                self._swa_needs,
                full_cell=cell - ratio * swa_cell,
                swa_cell=swa_cell,
                ratio=ratio,
                available=available_bytes,
            )
        _set_ratio(self, pools, patching)
        return inner(self, available_bytes, *args, **kwargs)

    @replaces(patching, f"{CONFIGURATOR}.calculate_pool_sizes_from_max_tokens")
    def calculate_pool_sizes_from_max_tokens(
        self: Any, max_total_num_tokens: int, *args: Any, inner: Any, **kwargs: Any
    ) -> Any:
        pools = None
        if self._swa_needs is not None and max_total_num_tokens > 0:
            pools = sizes.fit_tokens(
                self._swa_needs, ratio=self._swa_stock[0], full=max_total_num_tokens
            )
        _set_ratio(self, pools, patching)
        return inner(self, max_total_num_tokens, *args, **kwargs)


def unserved(configurator: Any, runner: Any) -> str | None:
    """Why the pools of a server's `runner` are left to stock; None if the ratio is derived."""
    if type(configurator).__name__ != "HybridSWAPoolConfigurator":
        return "stock sizes the sliding-window pool by the running requests"
    if not configurator._full_layers_num:
        return "every layer has a sliding window"
    if getattr(configurator, "_enable_unified_memory", False):
        return "both pools share one memory"
    if configurator._swa_full_tokens_ratio != sizes.STOCK_RATIO:
        return "the operator or the model sets the ratio"
    if setting(runner, "_swa_full_tokens_ratio_explicitly_set"):
        return "--swa-full-tokens-ratio is set"
    if not setting(runner, "max_running_requests"):
        return "--max-running-requests is not given"
    if not runner.sliding_window_size or runner.sliding_window_size < 0:
        return "the model has no sliding window"
    if (setting(runner, "chunked_prefill_size") or 0) <= 0:
        return "prefill is not chunked"
    return None


def needs(runner: Any, cap: Callable[..., int]) -> sizes.Needs:
    """What a server's sliding-window pool is to hold, by stock's own sum for the running requests.

    Stock makes a pool of that size if the prefix cache is off.
    """
    page, window, ranks = runner.page_size, runner.sliding_window_size, runner.attn_dp_size
    return sizes.Needs(
        requests=max(1, setting(runner, "max_running_requests") // ranks),
        running=cap(page_size=page, window=window, attn_dp_size=ranks),
        prefix=window + page,
        page_size=page,
        tails=0 if setting(runner, "disable_radix_cache") else setting(runner, "swa_prefix_tails"),
    )


def swa_cell_bytes(configurator: Any) -> float:
    """Bytes of a token in the sliding-window pool, over all layers, as stock's cell counts it."""
    if hasattr(configurator, "_swa_cell_bytes"):  # since 0.5.22
        return float(configurator._swa_cell_bytes())
    layers = configurator._swa_layers_num + configurator._draft_swa_layers_num
    return float(configurator._swa_per_token * layers)


def _set_ratio(configurator: Any, pools: sizes.Pools | None, patching: Patching) -> None:
    """Set the ratio, and the bytes of a token that follow from it, before stock reads both.

    Why this trick: stock solves its equation with these two attributes and nothing else, so that
    all it derives from the solution stays its own.
    """
    ratio, cell = configurator._swa_stock
    configurator._swa_full_tokens_ratio, configurator._cell_size = ratio, cell
    if pools is None:
        return
    patching.ran.seen = True
    configurator._swa_full_tokens_ratio = pools.ratio
    configurator._cell_size = cell - (ratio - pools.ratio) * swa_cell_bytes(configurator)
    logger.info(
        "swa.pool-ratio: %.4f instead of %s, sliding-window KV for %d tokens, of which %d cached "
        "prefixes",
        pools.ratio,
        ratio,
        pools.swa,
        pools.tails,
    )
