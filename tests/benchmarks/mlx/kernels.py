"""Which bits MLX's kernels give on this device where the mlx set changes a shape; as JSON lines.

    python tests/benchmarks/mlx/kernels.py [--quick] [--seconds 60]

It asks three questions of MLX alone, with Qwen3's dimensions. Is a row times a matrix the same
whatever the number of rows (a batch's composition, and prompts computed together)? Are the logits
of a prompt's last position the same where the head gets a few positions instead of all
(``mlx.last-row``)? And is the attention of a single request's decode the same whatever the room of
its buffer, by head size (``mlx.first-buffer``)? ``--quick`` asks of few sizes, for a laptop.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

_ROWS = (1, 2, 8, 16, 32, 64, 128)
_TOKENS = (
    *(2, 3, 5, 8, 9, 13, 16, 17, 24, 31, 33, 48, 63, 64, 65, 96, 100, 127, 129, 160, 200, 255, 256),
    *(257, 300, 384, 400, 511, 513, 640, 777, 1000, 1024, 1025, 1536, 2000, 2048, 2049, 3000),
    *(4000, 4096, 6000, 8000),
)
_FEW_TOKENS = (2, 5, 9, 13, 17, 33, 65, 129, 256, 257, 513)
_TOGETHER = (*range(1, 14), 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 128, 129, 256, 257, 512)
_VOCABULARY = 151_936
_HEAD_SIZES = (64, 80, 96, 128, 192, 256)
_KINDS = ("4 bits", "8 bits", "bfloat16", "float16", "float32")


def main() -> None:
    """Ask all three, the ones about small matrices first, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--hidden", type=int, default=0, help="in place of 1024 and 4096")
    parser.add_argument("--vocabulary", type=int, default=_VOCABULARY)
    given = parser.parse_args()
    mx.random.seed(3)
    began = time.monotonic()
    for line in _answers(given):
        print(json.dumps(line), flush=True)
        if time.monotonic() - began > given.seconds:
            print(json.dumps({"stopped": f"after {given.seconds:g} s, not all was asked"}))
            break


def _answers(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    hiddens = (given.hidden,) if given.hidden else (1024,) if given.quick else (1024, 4096)
    tokens = _FEW_TOKENS if given.quick else _TOKENS
    sizes = (64, 128, 256) if given.quick else _HEAD_SIZES
    for hidden in hiddens:
        for columns in (hidden, 3 * hidden):
            for kind in _KINDS:
                yield _together(hidden, columns, kind)
    for size in sizes:
        for dtype in ("bfloat16", "float16", "float32"):
            yield _attention(dtype, size)
    for hidden in hiddens:
        for kind in _KINDS:
            yield _head(hidden, given.vocabulary, kind, tokens)


def _linear(inner: int, columns: int, kind: str) -> tuple[Any, Any]:
    """A layer of a kind of weights, and the dtype of what goes in."""
    bits = int(kind.removesuffix(" bits")) if kind.endswith(" bits") else 0
    dtype = mx.bfloat16 if bits else getattr(mx, kind)
    layer: Any = nn.Linear(inner, columns, bias=False)
    layer.set_dtype(dtype)
    if bits:
        layer = layer.to_quantized(group_size=64, bits=bits)
    mx.eval(layer.parameters())
    return layer, dtype


def _together(inner: int, columns: int, kind: str) -> dict[str, Any]:
    """The numbers of rows that give a row other bits than the number before, of `_TOGETHER`."""
    layer, dtype = _linear(inner, columns, kind)
    states = mx.random.normal((_TOGETHER[-1], inner)).astype(dtype)
    changes, before = [], layer(states[None, -1:])[:, -1]
    for rows in _TOGETHER:
        last = layer(states[None, -rows:])[:, -1]
        if not _same(before, last):
            changes.append(rows)
        before = last
    return {"matrix": [inner, columns], "kind": kind, "other bits from so many rows on": changes}


def _head(hidden: int, vocabulary: int, kind: str, lengths: Sequence[int]) -> dict[str, Any]:
    head, dtype = _linear(hidden, vocabulary, kind)
    other: dict[int, list[int]] = {rows: [] for rows in _ROWS}
    for tokens in lengths:
        states = mx.random.normal((1, tokens, hidden)).astype(dtype)
        whole = head(states)[:, -1]
        for rows in _ROWS:
            if rows < tokens and not _same(whole, head(states[:, -rows:])[:, -1]):
                other[rows].append(tokens)
        mx.clear_cache()
    return {"head": hidden, "kind": kind, "other bits for a prompt of, by rows": other}


def _attention(dtype: str, size: int) -> dict[str, Any]:
    other: dict[int, list[int]] = {}
    for tokens in (40, 200, 256, 257, 300, 500, 512, 700, 1000, 1024, 1500, 2000, 3000, 4000):
        make = getattr(mx, dtype)
        queries = mx.random.normal((1, 16, 1, size)).astype(make)
        filled = [mx.random.normal((1, 8, tokens, size)).astype(make) for _ in range(2)]
        expected = _attended(queries, filled, 4096)
        room = -(-(tokens + 1) // 256) * 256
        for capacity in sorted({room, 2 * room}):
            if not _same(expected, _attended(queries, filled, capacity)):
                other.setdefault(tokens, []).append(capacity)
    return {"attention": dtype, "head size": size, "other bits than in 4096, by tokens": other}


def _attended(queries: Any, filled: list[Any], capacity: int) -> Any:
    buffers = []
    for tokens in filled:
        _, heads, length, size = tokens.shape
        buffer = mx.zeros((1, heads, capacity, size), dtype=tokens.dtype)
        buffer[:, :, :length] = tokens
        mx.eval(buffer)
        buffers.append(buffer[:, :, :length])
    return mx.fast.scaled_dot_product_attention(queries, *buffers, scale=0.088)


def _same(one: Any, other: Any) -> bool:
    words = {2: mx.uint16, 4: mx.uint32}[one.dtype.size]
    return bool(mx.array_equal(one.view(words), other.view(words)).item())


if __name__ == "__main__":
    main()
