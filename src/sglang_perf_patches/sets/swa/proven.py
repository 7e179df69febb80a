"""With which features of a server each swa patch was proven, and by which check."""

from ...model.setups import all_but

_QUEUE = ("sparse-kv", "decode-radix-cache", "decode-offload")

PROVEN = {
    "swa.tail-prealloc": all_but(*_QUEUE, "pipeline"),
    "swa.page-size-1": all_but(*_QUEUE),
    "swa.window-bounded-admission": all_but(*_QUEUE, "pipeline"),
    "swa.idle-admission": all_but(*_QUEUE, "pipeline"),
    "swa.pool-ratio": all_but(
        *("prefill-server", "decode-server", "pipeline", "hierarchical-cache", "whole-prefills"),
        *("unified-memory", "no-window-pool"),
    ),
    "swa.free-without-sync": all_but(),
    "swa.evict-before-retract": all_but(),
}
