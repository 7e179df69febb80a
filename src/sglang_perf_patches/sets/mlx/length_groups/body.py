"""``mlx.length-groups``: asks ``mlx.kv-arena`` for buffers by length.

A batch's buffers, its groups and attention to each of them are that patch's. This one marks the
contexts of decode steps, where that patch looks for it, and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....model.patching import Patching
from ..grouping import MARK
from ..references import BATCHED_DECODE


def install(patching: Patching) -> None:
    """Mark each step's context."""
    patching.anytime("without it the next step's requests share one buffer again")

    def make_decode(inner: Callable[..., Any]) -> Callable[..., Any]:
        def batched_decode(self: Any, x: Any, ctx: Any) -> Any:
            """Decode one layer; x and the result are (batch, 1, hidden)."""
            vars(ctx)[MARK] = patching
            return inner(self, x, ctx)

        return batched_decode

    patching.override(BATCHED_DECODE, make_decode)
