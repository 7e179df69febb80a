"""``mamba.gdn-prefill-graph-triton``: short prefills of a FlashInfer server by Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...model.patching import Patching

_LINEAR = "sglang.srt.layers.attention.linear"
_BACKEND = f"{_LINEAR}.gdn_backend:GDNAttnBackend"


def install(patching: Patching) -> None:
    """Provide Triton's kernel to `gdn_prefill_graph` if the server's own is FlashInfer's."""
    from .gdn_prefill_graph import KERNEL, wait_for_graphs

    wait_for_graphs(patching)
    made: list[Any] = []

    def lent(self: Any, own: Any) -> Any:
        if type(own).__name__ != "FlashInferGDNKernel":
            return None
        if not made:
            made.append(patching.module(f"{_LINEAR}.kernels.gdn_triton").TritonGDNKernel())
        patching.ran.seen = True
        return made[0]

    patching.add(f"{_BACKEND}.{KERNEL}", lent)
