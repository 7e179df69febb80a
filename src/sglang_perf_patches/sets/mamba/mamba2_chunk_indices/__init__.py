"""``mamba.mamba2-chunk-indices``."""

from ....model.patch import Patch, Worth, of, variant
from ..proven import ALL
from ..references import LISTS, METADATA

MAMBA2 = f"{METADATA}:Mamba2Metadata"


_SHARED = {
    "targets": of(MAMBA2, "prepare_mixed", "_query_start_loc_to_chunk_indices_offsets"),
    "depends": LISTS,
}

PATCH = Patch(
    id="mamba.mamba2-chunk-indices",
    only_with=("mamba2", "prefills", "torch"),
    # It reads only a prefill's lists. What is no plain or mixed prefill, whose lists the scheduler
    # passed whole, runs stock's code (`host.prefill`).
    proven_with={
        **dict.fromkeys((*ALL, "hierarchical-cache", "no-radix-cache", "mixed-chunks"), "verify"),
        **dict.fromkeys(
            ("sessions", "other-tracking", "prefill-server", "eagle", "lora", "multimodal"),
            "verify",
        ),
        "tensor-parallel": "tests/mamba/mamba2_rank.py: main",
    },
    summary="computes Mamba2's logical chunks on the host, without a sync",
    worth=Worth(
        "a",
        "with Nemotron Nano's shape, 64 prompts get their first tokens in 0.934 of stock's time",
        "tests/benchmarks/results/mamba.md",
        "engine-chunks-64",
    ),
    variants=(
        variant(__name__, "0.5.9 … 0.5.13.post1, 0.5.15 … 0.5.23", **_SHARED),
        variant(__name__, "0.5.14", "install_masked", **_SHARED),
    ),
)
