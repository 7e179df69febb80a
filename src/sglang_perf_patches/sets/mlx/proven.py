"""With which features of a server each mlx patch was proven, and by which check."""

from ...model.setups import all_but

PROVEN = {
    f"mlx.{name}": all_but()
    for name in (
        *("pool-write", "first-buffer", "last-row", "decode-context", "kv-arena", "step-mask"),
        *("merged-cache", "cache-growth", "merged-state", "next-turn"),
    )
}
