"""``doctor --model`` for a model with sliding windows: sizes the window pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...sets.swa.pool_ratio.sizes import STOCK_RATIO, Needs, fit

NEEDS_REQUESTS = (
    "the model has a sliding window: --max-running-requests is missing, its pool depends on it"
)
"""The reason if the number of requests is missing."""


@dataclass(frozen=True)
class Hint:
    """A better ratio, or why there is none.

    Attributes:
        ratio: for ``--swa-full-tokens-ratio``; None with `reason`.
        full_stock: tokens of the full pool at stock's ratio.
        full: tokens of the full pool at `ratio`.
        swa: tokens of the sliding-window pool at `ratio`.
        reason: why stock's ratio should stay.
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
    """The ``--swa-full-tokens-ratio`` that fits most tokens, and how many.

    Args:
        model: the model's ``config.json``; for a multimodal model, its text part is used.
        requests: ``--max-running-requests``; None if it is not given.
        kv_bytes: memory for KV on one GPU.
        page_size: in tokens.
        tensor_parallel: the number of GPUs that share the KV heads.
        value_bytes: bytes of one value: 2 for bfloat16, 1 for fp8.
        interval: steps between two evictions (``SGLANG_SWA_EVICTION_INTERVAL``).
        chunked_prefill: ``--chunked-prefill-size``, in tokens.
        prefix_cache: whether the radix cache is on.
        ratio: the server's present ratio.
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
