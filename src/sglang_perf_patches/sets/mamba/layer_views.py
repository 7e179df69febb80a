"""``mamba.layer-views``: a pool makes each layer's views of the states once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .situations import refuse_platforms

if TYPE_CHECKING:
    from ...model.patching import Patching

_POOL = "sglang.srt.mem_cache.memory_pool:MambaPool"
_HELD = "_sglang_perf_patches_views"


def install(patching: Patching) -> None:
    """Keep the views beside the states that they are of."""
    refuse_platforms(patching)
    patching.override(f"{_POOL}.mamba2_layer_cache", _kept(patching))


def _kept(patching: Patching) -> Any:
    import torch

    pool_class = patching.get(_POOL)
    is_compiling = torch.compiler.is_compiling
    ran = patching.ran

    def make(inner: Any) -> Any:
        def mamba2_layer_cache(self: Any, layer_id: int) -> Any:
            # A graph of Dynamo makes its own: it can't keep what it has made for later. A subclass
            # may have tensors that are exchanged.
            if is_compiling() or type(self) is not pool_class:
                return inner(self, layer_id)
            states = self.mamba_cache
            held = vars(self).get(_HELD)
            if held is None or held[0] is not states:
                held = (states, {})
                setattr(self, _HELD, held)
            found = held[1].get(layer_id)
            if found is None:
                found = held[1][layer_id] = inner(self, layer_id)
            else:
                ran.seen = True
            return found

        return mamba2_layer_cache

    return make
