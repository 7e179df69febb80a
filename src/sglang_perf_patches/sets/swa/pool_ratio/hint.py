"""How large a sliding-window pool a server needs, and how many tokens fit into the other then.

Stock gives the sliding-window pool a fixed share of the full pool's tokens
(``--swa-full-tokens-ratio``, 0.8 for most models), whatever the window and the number of requests
are. This computes the share from both; `swa.pool-ratio` applies it, `hint` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..window import ceil_align

STOCK_RATIO = 0.8
"""What stock takes for models without a ratio of their own."""

NEEDS_REQUESTS = (
    "the model has a sliding window: give --max-running-requests, its pool follows from it"
)
"""Why there is no hint without the number of requests."""

MOST_TAILS = 4
"""Cached prefixes kept reusable for each running request, at most: stock's figure for DeepSeek-V4
(``DSV4PoolConfigurator._resolve_swa_prefix_tails``, 0.5.22 and later)."""


@dataclass(frozen=True)
class Needs:
    """What decides how much sliding-window KV a server holds; lengths in tokens.

    Attributes:
        requests: most requests that run at once, on one rank of data parallelism.
        window: the sliding window.
        page_size: the page.
        interval: steps of a request between two evictions of what is behind its window.
        a_step: tokens that a request decodes in a step at most; 1 without speculative decoding.
        ahead: slots that a request has beyond those in use: a page without speculative decoding.
        chunks: tokens of all prefill chunks in flight.
        tails: cached prefixes to keep reusable; None to derive it from `requests`, 0 without a
            prefix cache.
    """

    requests: int
    window: int
    page_size: int
    interval: int
    a_step: int
    ahead: int
    chunks: int
    tails: int | None

    @property
    def running(self) -> int:
        """The most that running requests and prefill chunks hold, in tokens, whole pages.

        The same sum as ``compute_swa_request_cap`` (0.5.21 and later) for a server that is not
        disaggregated.
        """
        each = self.window + self.interval * self.a_step + self.page_size + self.ahead
        return each * max(1, self.requests) + self.chunks + self.page_size

    def with_tails(self, tails: int) -> int:
        """`running`, and room for so many cached prefixes; in whole pages."""
        return ceil_align(self.running + tails * (self.window + self.page_size), self.page_size)


@dataclass(frozen=True)
class Pools:
    """Sizes of both pools in tokens, and the ratio that makes stock choose them."""

    full: int
    swa: int
    ratio: float
    tails: int


def fit(
    needs: Needs, *, full_cell: float, swa_cell: float, ratio: float, available: int
) -> Pools | None:
    """Pools for a budget of bytes; None where stock's ratio leaves as much to the full pool.

    Args:
        needs: what the sliding-window pool is to hold.
        full_cell: bytes of a token in the full pool, over all layers.
        swa_cell: bytes of a token in the sliding-window pool, over all layers.
        ratio: stock's ratio.
        available: bytes for both pools.
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
        each = needs.window + needs.page_size
        spare = int((stock / 2 - needs.running) / each)
        tails = min(max(spare, needs.requests), MOST_TAILS * needs.requests)
    # One more page: stock rounds the ratio of two integers down to whole pages.
    return needs.with_tails(tails) + needs.page_size, tails


@dataclass(frozen=True)
class Hint:
    """What another ratio would bring, or why there is no hint.

    Attributes:
        ratio: for ``--swa-full-tokens-ratio``; None with `reason`.
        full_stock: tokens of the full pool at stock's ratio.
        full: the same at `ratio`.
        swa: tokens of the sliding-window pool at `ratio`.
        reason: why stock's ratio is left as it is.
    """

    ratio: float | None = None
    full_stock: int = 0
    full: int = 0
    swa: int = 0
    reason: str = ""

    @property
    def text(self) -> str:
        """One line for an operator."""
        if self.ratio is None:
            return f"sliding-window pool: {self.reason}"
        return (
            f"sliding-window pool: --swa-full-tokens-ratio {self.ratio:.3f} would fit "
            f"{self.full:,} tokens instead of {self.full_stock:,} "
            f"({self.full / self.full_stock:.2f} times), with sliding-window KV for {self.swa:,}"
        )


def hint(
    model: Mapping[str, Any],
    *,
    requests: int | None,
    kv_bytes: int,
    page_size: int = 1,
    tensor_parallel: int = 1,
    value_bytes: int = 2,
    interval: int = 128,
    chunked_prefill: int = 8192,
    prefix_cache: bool = True,
    ratio: float = STOCK_RATIO,
) -> Hint:
    """What ``--swa-full-tokens-ratio`` would fit how many tokens more, for a model and arguments.

    Args:
        model: the model's ``config.json``; of a multimodal model the text part is taken.
        requests: ``--max-running-requests``; None if it is not given.
        kv_bytes: memory for KV on one GPU.
        page_size: in tokens.
        tensor_parallel: over how many GPUs the KV heads are spread.
        value_bytes: bytes of one value: 2 for bfloat16, 1 for fp8.
        interval: steps between two evictions (``SGLANG_SWA_EVICTION_INTERVAL``).
        chunked_prefill: ``--chunked-prefill-size``, in tokens.
        prefix_cache: whether the radix cache is on.
        ratio: the one in force.
    """
    text: Mapping[str, Any] = model.get("text_config") or model
    window = text.get("sliding_window")
    kinds = layer_kinds(text)
    if not window or not kinds[1]:
        return Hint(reason="the model has no sliding window")
    if not kinds[0]:
        return Hint(reason="every layer has a sliding window: there is no other pool")
    if requests is None:
        return Hint(reason=NEEDS_REQUESTS)
    heads = max(1, int(text["num_key_value_heads"]) // tensor_parallel)
    head = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    a_layer = heads * head * 2 * value_bytes
    needs = Needs(
        requests=requests,
        window=window,
        page_size=page_size,
        interval=interval,
        a_step=1,
        ahead=page_size,
        chunks=2 * chunked_prefill,
        tails=None if prefix_cache else 0,
    )
    cells = {"full_cell": kinds[0] * a_layer, "swa_cell": kinds[1] * a_layer}
    pools = fit(needs, **cells, ratio=ratio, available=kv_bytes)
    if pools is None:
        return Hint(reason=f"{requests} requests need no less than --swa-full-tokens-ratio {ratio}")
    stock = int(kv_bytes / (cells["full_cell"] + ratio * cells["swa_cell"]))
    return Hint(pools.ratio, stock, pools.full, pools.swa)


def layer_kinds(text: Mapping[str, Any]) -> tuple[int, int]:
    """How many layers of a model attend to everything, and how many within a window."""
    layers = int(text.get("num_hidden_layers", 0))
    kinds = text.get("layer_types")
    if kinds:
        windowed = sum("sliding" in kind for kind in kinds)
        return layers - windowed, windowed
    pattern = text.get("sliding_window_pattern")
    if pattern:
        full = sum((n + 1) % pattern == 0 for n in range(layers))
        return full, layers - full
    return layers, 0
