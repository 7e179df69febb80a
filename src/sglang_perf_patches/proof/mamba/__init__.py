"""What the proofs of the mamba set share; what each of them compares."""

from __future__ import annotations

from .. import Case, lent

CASES = tuple(
    Case(patch=f"mamba.{name}", what=what)
    for name, what in {
        "gdn-prefill-graph": "outputs and states of replayed gated-delta-net prefills",
        "zero-sync": "outputs and states of gated-delta-net forwards, metadata, the scheduler's "
        "batches",
        "mamba2-chunk-indices": "outputs and states of Mamba2 forwards, and their metadata",
        "lightning-rows": "outputs and states of lightning-attention forwards",
        "slot-exhaustion": "what a server with few slots decides and holds, step by step, until "
        "stock dies",
        "host-states": "the host's pools, and the KV and states that requests find there",
    }.items()
)

prepare = lent.lend
