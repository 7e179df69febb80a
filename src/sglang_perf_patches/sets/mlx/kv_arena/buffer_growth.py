"""How a request's buffer grows.

Up to 0.5.14 a batched decode that reaches its end loses tokens. From 0.5.15 on stock grows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def doubled(room: int, length: int) -> int:
    """The capacity after stock's growth, which doubles `room` until `length` fits."""
    while room < length:
        room *= 2
    return room


def growing(inner: Callable[..., None]) -> Callable[..., None]:
    """Stock's ``write_token`` of a request's cache, after stock's own growth of a full buffer.

    Stock loses what it writes past the end. If the lengths of a batch differ, a ValueError then
    ends the step. If they are equal, nothing is raised and the logits are wrong.
    """

    def write_token(self: Any, k: Any, v: Any) -> None:
        """Grow a full buffer, then write; k and v are (1, n_kv_heads, 1, head_dim)."""
        if self.offset >= self.max_seq_len:
            self._grow(self.offset + 1)
        inner(self, k, v)

    return write_token
