"""Sizes the sliding-window pool by the running requests and the window.

Stock does so for DeepSeek-V4 (``DSV4PoolConfigurator``), and for other models if the prefix
cache is off (``SWAChunkCapPoolConfigurator``, later ``SWARequestCapPoolConfigurator``). Here
stock's own arithmetic gets another ratio, if the operator set none.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from ....model.declaration import Declaration
from ....model.patch import of
from ....model.patching import Patching
from ..proven import BESIDE
from ..references import EVICTS
from ..window import ceil_align, setting

_MODULE = "sglang.srt.model_executor.pool_configurator"
_CONFIGURATOR = f"{_MODULE}:HybridSWAPoolConfigurator"
_CAP = "compute_swa_request_cap"
"""Stock's sum of what running requests hold, from 0.5.21 on."""

PATCH = Declaration(
    *(__name__, "0.5.21 … 0.5.23"),
    # What stock calls no window pool may be one that `swa.window-pool` gives.
    # Without a prefix cache stock sizes the pool by the requests.
    only_with=("windows", "torch", "prefix-cache", "request-limit", "stock-window-ratio"),
    proven_with=BESIDE | dict.fromkeys(("pages", "no-window-pool"), "verify"),
    anchors=(f"{_MODULE}:{_CAP}",),
    absent_because="tested only on 0.5.21 and later",
    depends=(
        *of(_CONFIGURATOR, "_solve_pool_sizes", "_recompute_cell_size", "_swa_cell_bytes"),
        f"{_MODULE}:{_CAP}",
        f"{_MODULE}:create_memory_pool_configurator",
        *EVICTS,
    ),
    anytime="pools keep the sizes that they were made with, whoever computed them",
)

logger = logging.getLogger("sglang_perf_patches")

STOCK_RATIO = 0.8
"""For models without a ratio of their own."""

MOST_TAILS = 4
"""Cached prefixes kept reusable for each running request, at most: stock's figure for DeepSeek-V4
(``DSV4PoolConfigurator._resolve_swa_prefix_tails``, 0.5.22 and later)."""


@PATCH.replaces(f"{_CONFIGURATOR}.__init__")
def init(self, runner, *, patch, stock):
    stock(self, runner)
    self._swa_stock = (self._swa_full_tokens_ratio, self._cell_size)
    reason = unserved(self, runner)
    self._swa_needs = None if reason else needs(runner, getattr(patch.module(_MODULE), _CAP))
    if reason:
        patch.gate(reason)


@PATCH.replaces(f"{_CONFIGURATOR}.calculate_pool_sizes")
def calculate_pool_sizes(self, available_bytes, page_size, *, patch, stock):
    if self._swa_needs is not None:
        ratio, cell = self._swa_stock
        swa_cell = swa_cell_bytes(self)
        pools = fit(
            self._swa_needs,
            full_cell=cell - ratio * swa_cell,
            swa_cell=swa_cell,
            ratio=ratio,
            available=available_bytes,
        )
        _set_ratio(self, pools, patch)
    return stock(self, available_bytes, page_size)


@PATCH.replaces(f"{_CONFIGURATOR}.calculate_pool_sizes_from_max_tokens")
def calculate_pool_sizes_from_max_tokens(self, tokens, page_size, *, patch, stock):
    if self._swa_needs is not None:
        pools = fit_tokens(self._swa_needs, ratio=self._swa_stock[0], full=tokens)
        _set_ratio(self, pools, patch)
    return stock(self, tokens, page_size)


def unserved(configurator: Any, runner: Any) -> str | None:
    """Why the pools of a server's `runner` are left to stock; None if the ratio is derived."""
    if type(configurator).__name__ != "HybridSWAPoolConfigurator":
        return "stock sizes the sliding-window pool by the running requests"
    if not configurator._full_layers_num:
        return "every layer has a sliding window"
    if getattr(configurator, "_enable_unified_memory", False):
        return "both pools share one memory"
    if configurator._swa_full_tokens_ratio != STOCK_RATIO:
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


class Needs(NamedTuple):
    """What decides how much sliding-window KV a server holds; lengths in tokens."""

    requests: int  # most that run at once, on one rank of data parallelism
    running: int  # the most that they and all prefill chunks in flight hold
    prefix: int  # what a cached prefix keeps to be reusable: its window, and a page
    page_size: int
    # Cached prefixes to keep reusable; None to derive it from `requests`, 0 without a prefix cache.
    tails: int | None

    def with_tails(self, tails: int) -> int:
        """`running`, plus this many cached prefixes; in whole pages."""
        return ceil_align(self.running + tails * self.prefix, self.page_size)


class Pools(NamedTuple):
    """Sizes of both pools in tokens, and the ratio that makes stock choose them."""

    full: int
    swa: int
    ratio: float
    tails: int


def needs(runner: Any, cap: Any) -> Needs:
    """What a server's sliding-window pool is to hold; `cap`, of `_CAP`, has no cached prefixes."""
    page, window, ranks = runner.page_size, runner.sliding_window_size, runner.attn_dp_size
    return Needs(
        requests=max(1, setting(runner, "max_running_requests") // ranks),
        running=cap(page_size=page, window=window, attn_dp_size=ranks),
        prefix=window + page,
        page_size=page,
        tails=0 if setting(runner, "disable_radix_cache") else setting(runner, "swa_prefix_tails"),
    )


def fit(
    needs: Needs, *, full_cell: float, swa_cell: float, ratio: float, available: int
) -> Pools | None:
    """Pools for a budget of bytes; None where stock's ratio leaves as much to the full pool.

    Cells are bytes of a token in a pool, over all layers; `available` are bytes for both pools.
    """
    stock_full = int(available / (full_cell + ratio * swa_cell))
    swa, tails = _sized(needs, stock_full * ratio)
    full = int((available - swa * swa_cell) / full_cell)
    return Pools(full, swa, swa / full, tails) if full > stock_full else None


def fit_tokens(needs: Needs, *, ratio: float, full: int) -> Pools | None:
    """As `fit`, for a known size of the full pool, in tokens."""
    swa, tails = _sized(needs, full * ratio)
    return Pools(full, swa, swa / full, tails) if swa < full * ratio else None


def _sized(needs: Needs, stock: float) -> tuple[int, int]:
    """Tokens of the sliding-window pool, and cached prefixes that it keeps reusable.

    A prefix for each running request at least, which holds it locked; up to `MOST_TAILS` for each
    as far as all stays within half of stock's pool.
    """
    tails = needs.tails
    if tails is None:
        spare = int((stock / 2 - needs.running) / needs.prefix)
        tails = min(max(spare, needs.requests), MOST_TAILS * needs.requests)
    # One more page: stock rounds the ratio of two integers down to whole pages.
    return needs.with_tails(tails) + needs.page_size, tails


def swa_cell_bytes(configurator: Any) -> float:
    """Bytes of a token in the sliding-window pool, over all layers, as stock's cell counts it."""
    if hasattr(configurator, "_swa_cell_bytes"):  # since 0.5.22
        return float(configurator._swa_cell_bytes())
    layers = configurator._swa_layers_num + configurator._draft_swa_layers_num
    return float(configurator._swa_per_token * layers)


def _set_ratio(configurator: Any, pools: Pools | None, patch: Patching) -> None:
    """Set the ratio, and the bytes of a token that follow from it, before stock reads both.

    Stock solves its equation with these two attributes and nothing else, so all that it derives
    from the solution stays its own.
    """
    ratio, cell = configurator._swa_stock
    configurator._swa_full_tokens_ratio, configurator._cell_size = ratio, cell
    if pools is not None:
        patch.ran.seen = True
        configurator._swa_full_tokens_ratio = pools.ratio
        configurator._cell_size = cell - (ratio - pools.ratio) * swa_cell_bytes(configurator)
        logger.info(
            "swa.pool-ratio: %.4f instead of %s, sliding-window KV for %d tokens, of which %d "
            "cached prefixes",
            *(pools.ratio, ratio, pools.swa, pools.tails),
        )
