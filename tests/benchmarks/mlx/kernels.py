"""Which bits MLX's kernels give on this GPU where the mlx set changes a shape; prints JSON lines.

It asks two questions of MLX alone, with Qwen3's dimensions. Are the logits of a prompt's last
position the same where the head gets a few positions instead of all (``mlx.last-row``)? And is the
attention of a single request's decode the same whatever the room of its buffer
(``mlx.first-buffer``)?
"""

from __future__ import annotations

import json
from typing import Any

import mlx.core as mx
import mlx.nn as nn

_ROWS = (1, 2, 8, 16, 32, 64, 128)
_TOKENS = (
    *(2, 3, 5, 8, 9, 13, 16, 17, 24, 31, 33, 48, 63, 64, 65, 96, 100, 127, 129, 160, 200, 255, 256),
    *(257, 300, 384, 400, 511, 513, 640, 777, 1000, 1024, 1025, 1536, 2000, 2048, 2049, 3000),
    *(4000, 4096, 6000, 8000),
)
_VOCABULARY = 151_936


def main() -> None:
    """Ask both."""
    mx.random.seed(3)
    for dtype in ("bfloat16", "float16", "float32"):
        print(json.dumps(_attention(dtype)), flush=True)
    for kind in ("4 bits", "bfloat16", "float16", "float32"):
        for hidden in (1024, 4096):
            print(json.dumps(_head(hidden, kind)), flush=True)


def _head(hidden: int, kind: str) -> dict[str, Any]:
    dtype = mx.bfloat16 if kind == "4 bits" else getattr(mx, kind)
    head: Any = nn.Linear(hidden, _VOCABULARY, bias=False)
    head.set_dtype(dtype)
    if kind == "4 bits":
        head = head.to_quantized(group_size=64, bits=4)
    mx.eval(head.parameters())
    other: dict[int, list[int]] = {rows: [] for rows in _ROWS}
    for tokens in _TOKENS:
        states = mx.random.normal((1, tokens, hidden)).astype(dtype)
        whole = head(states)[:, -1]
        for rows in _ROWS:
            if rows < tokens and not _same(whole, head(states[:, -rows:])[:, -1]):
                other[rows].append(tokens)
        mx.clear_cache()
    return {"head": hidden, "kind": kind, "other bits for a prompt of, by rows": other}


def _attention(dtype: str) -> dict[str, Any]:
    other: dict[int, list[int]] = {}
    for tokens in (40, 200, 256, 257, 300, 500, 512, 700, 1000, 1024, 1500, 2000, 3000, 4000):
        make = getattr(mx, dtype)
        queries = mx.random.normal((1, 16, 1, 128)).astype(make)
        filled = [mx.random.normal((1, 8, tokens, 128)).astype(make) for _ in range(2)]
        expected = _attended(queries, filled, 4096)
        room = -(-(tokens + 1) // 256) * 256
        for capacity in {room, 2 * room}:
            if not _same(expected, _attended(queries, filled, capacity)):
                other.setdefault(tokens, []).append(capacity)
    return {"attention": dtype, "other bits than in 4096, by tokens": other}


def _attended(queries: Any, filled: list[Any], capacity: int) -> Any:
    buffers = []
    for tokens in filled:
        buffer = mx.zeros((1, 8, capacity, 128), dtype=tokens.dtype)
        buffer[:, :, : tokens.shape[2]] = tokens
        mx.eval(buffer)
        buffers.append(buffer[:, :, : tokens.shape[2]])
    return mx.fast.scaled_dot_product_attention(queries, *buffers, scale=0.088)


def _same(one: Any, other: Any) -> bool:
    words = {2: mx.uint16, 4: mx.uint32}[one.dtype.size]
    return bool(mx.array_equal(one.view(words), other.view(words)).item())


if __name__ == "__main__":
    main()
