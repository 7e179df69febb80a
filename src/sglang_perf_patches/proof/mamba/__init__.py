"""The cases of the mamba set."""

from __future__ import annotations

from .. import Case

_HERE = f"{__name__}.compared"

CASES: tuple[Case, ...] = (
    Case(
        patch="mamba.gdn-prefill-graph",
        compare=f"{_HERE}:prefill_graph",
        what="outputs and states of replayed gated-delta-net prefills",
    ),
    Case(
        patch="mamba.zero-sync",
        compare=f"{_HERE}:zero_sync",
        what="outputs and states of gated-delta-net forwards, metadata, the scheduler's batches",
    ),
    Case(
        patch="mamba.mamba2-chunk-indices",
        compare=f"{_HERE}:chunk_indices",
        what="outputs and states of Mamba2 forwards, and their metadata",
    ),
    Case(
        patch="mamba.lightning-rows",
        compare=f"{_HERE}:lightning_rows",
        what="outputs and states of lightning-attention forwards",
    ),
)


def prepare() -> None:
    """Make this process fit for the cases, before sglang is imported."""
    from .. import lent

    lent.lend()
