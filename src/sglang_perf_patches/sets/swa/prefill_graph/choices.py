"""What FlashAttention 3 chooses by numbers of the host, for a prefill of one request.

The lengths of a sequence are on the device, and a captured kernel reads them at each replay. Three
choices are made before the launch, by the number of new tokens and the width of the page table:
whether a window is as long as the table (then the kernel has none, and other tiles), whether KV is
copied by whole pages, and into how many parts the keys may be split. Where a batch and a bucket
give the same choices, the captured kernel computes the same. See ``hopper/flash_api.cpp``,
``heuristics.h`` and ``tile_size.h`` in sgl-project/sgl-attn.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

MOST_SPLITS = 128


@dataclass(frozen=True)
class Kind:
    """Layers for which FlashAttention chooses alike; heads are those of this rank."""

    window: int  # tokens to the left that a token attends to; -1 for all
    heads: int
    kv_heads: int
    width: int  # values of a head of queries and keys, 16 bits each
    value_width: int


@dataclass(frozen=True)
class Choice:
    """What is chosen: see the module."""

    has_window: bool
    by_pages: bool
    splits: int


def choice(kind: Kind, tokens: int, length: int, page: int, units: int) -> Choice:
    """What a call for one request chooses, in a causal layer.

    It has `tokens` new tokens, at least 2, of its `length`, and the GPU `units` multiprocessors.
    """
    length = ceil(length / page) * page
    has_window = 0 <= kind.window < length - 1
    packed = kind.heads // kind.kv_heads
    rows, columns = _tile(kind, has_window, by_pages=True)
    by_pages = page % columns == 0 and tokens * packed > rows
    rows, columns = _tile(kind, has_window, by_pages)
    loaded = min(length, kind.window + 1 + rows) if has_window else length
    blocks = ceil(tokens * packed / rows) * kind.kv_heads
    return Choice(has_window, by_pages, _splits(blocks, ceil(loaded / columns), units))


def _tile(kind: Kind, has_window: bool, by_pages: bool) -> tuple[int, int]:
    """Rows and columns of a block of a causal layer's scores."""
    narrow = has_window or not by_pages
    if kind.width <= 64:
        return 192, 128
    if kind.width <= 96:
        return 192, 128 if narrow else 144
    if kind.width <= 128:
        return 128, 128
    if kind.width <= 192:
        return 128, 96 if narrow else 128 if kind.value_width <= 128 else 112
    return 128, 64 if has_window else 80


def _splits(blocks: int, columns: int, units: int) -> int:
    """The fewest parts that keep the GPU nearly as busy as any number of them."""
    if np.float32(blocks) >= np.float32(0.8) * units or columns <= 4:
        return 1
    most = min(MOST_SPLITS, units, columns)
    waves = np.arange(1, most + 1, dtype=np.float32) * np.float32(blocks) / np.float32(units)
    used = waves / np.ceil(waves)
    return int(np.argmax(used >= 0.85 * used.max().astype(np.float64))) + 1
