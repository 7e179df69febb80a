"""How large a sliding-window pool a server needs, and how many tokens fit into the other then.

Stock gives it a fixed share of the full pool's tokens (``--swa-full-tokens-ratio``), whatever the
window and the number of requests are. Here the share follows from both.
"""

from __future__ import annotations

from typing import NamedTuple

from ..window import ceil_align

STOCK_RATIO = 0.8
"""For models without a ratio of their own."""

MOST_TAILS = 4
"""Cached prefixes kept reusable for each running request, at most: stock's figure for DeepSeek-V4
(``DSV4PoolConfigurator._resolve_swa_prefix_tails``, 0.5.22 and later)."""


class Needs(NamedTuple):
    """What decides how much sliding-window KV a server holds; lengths in tokens.

    Attributes:
        requests: most requests that run at once, on one rank of data parallelism.
        running: the most that they and all prefill chunks in flight hold.
        prefix: what a cached prefix keeps to be reusable: its window, and a page.
        page_size: the page.
        tails: cached prefixes to keep reusable; None to derive it from `requests`, 0 without a
            prefix cache.
    """

    requests: int
    running: int
    prefix: int
    page_size: int
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


def fit(
    needs: Needs, *, full_cell: float, swa_cell: float, ratio: float, available: int
) -> Pools | None:
    """Pools for a budget of bytes; None where stock's ratio leaves as much to the full pool.

    Cells are bytes of a token in a pool, over all layers; `available` are bytes for both pools.
    """
    stock_full = int(available / (full_cell + ratio * swa_cell))
    swa, tails = _sized(needs, stock_full * ratio)
    full = int((available - swa * swa_cell) / full_cell)
    if full <= stock_full:
        return None
    return Pools(full, swa, swa / full, tails)


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
