"""The cases of the mlx set."""

from __future__ import annotations

from .. import Case

_NEEDS = ("mlx", "mlx_lm")

CASES: tuple[Case, ...] = tuple(
    Case(
        patch=f"mlx.{name}",
        compare=f"{__name__}.comparisons:{function}",
        what=what,
        device="mlx",
        needs=_NEEDS,
    )
    for name, function, what in (
        (
            "pool-write",
            "pool_write",
            "logits of every forward pass, tokens, KV in the pool, and what is kept of requests",
        ),
        (
            "first-buffer",
            "first_buffer",
            "logits of every forward pass, tokens, KV in the pool, and the room of buffers",
        ),
        (
            "last-row",
            "last_row",
            "logits of every forward pass, tokens and logprobs",
        ),
        (
            "next-turn",
            "next_turn",
            "logits of every forward pass, tokens, KV in the pool; with a window, logits to 1e-4",
        ),
        (
            "decode-context",
            "decode_context",
            "logits of every forward pass",
        ),
        (
            "kv-arena",
            "kv_arena",
            "logits of every forward pass, tokens, KV in the pool; steps that fail, full buffers",
        ),
        (
            "merged-cache",
            "merged_cache",
            "logits of every forward pass, tokens, and steps that fail",
        ),
    )
)


def prepare() -> None:
    """Make stock's runner importable."""
    from . import standalone

    standalone.lend()
