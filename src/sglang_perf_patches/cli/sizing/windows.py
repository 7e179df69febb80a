"""``doctor --model`` for a model with sliding windows: sizes the window pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...sets.swa.pool_ratio.sizes import STOCK_RATIO, Needs, fit
from .server import Server

_INTERVAL = 128
"""Steps between two evictions, by default (``SGLANG_SWA_EVICTION_INTERVAL``)."""


@dataclass(frozen=True)
class Hint:
    """A better ratio with the tokens of both pools, or the `reason` for stock's."""

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


def hint(model: Mapping[str, Any], server: Server) -> Hint:
    """The ``--swa-full-tokens-ratio`` that fits most tokens, and how many.

    Args:
        model: the model's ``config.json``; for a multimodal model, its text part is used.
        server: the options.

    Raises:
        OperatorError: there is a window pool, and the number of requests is missing.
    """
    text: Mapping[str, Any] = model.get("text_config") or model
    window = text.get("sliding_window")
    kinds = layer_kinds(text)
    if not window or not kinds[1]:
        return Hint(reason="the model has no sliding window")
    if not kinds[0]:
        return Hint(reason="every layer has a sliding window: there is no other pool")
    requests = server.needed("max_running_requests", "the model has a sliding window")
    heads = max(1, int(text["num_key_value_heads"]) // server.tp_size)
    head = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    a_layer = heads * head * 2 * server.kv_cache_bytes
    page = server.page_size
    needs = Needs(
        requests=requests,
        # As sglang's compute_swa_request_cap, for a server without speculation.
        running=(window + _INTERVAL + 2 * page) * requests + 2 * server.chunked_prefill_size + page,
        prefix=window + page,
        page_size=page,
        tails=0 if server.disable_radix_cache else None,
    )
    full_cell, swa_cell = (layers * a_layer for layers in kinds)
    pools = fit(
        needs,
        full_cell=full_cell,
        swa_cell=swa_cell,
        ratio=STOCK_RATIO,
        available=server.available,
    )
    if pools is None:
        least = f"--swa-full-tokens-ratio {STOCK_RATIO}"
        return Hint(reason=f"{requests} requests need no less than {least}")
    stock = int(server.available / (full_cell + STOCK_RATIO * swa_cell))
    return Hint(pools.ratio, stock, pools.full, pools.swa)


def layer_kinds(text: Mapping[str, Any]) -> tuple[int, int]:
    """``(layers with full attention, layers with windows)``."""
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
