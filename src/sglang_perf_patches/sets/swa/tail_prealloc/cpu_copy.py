"""CPU copies of KV whose sliding-window part is not all there: copy and load what is mapped."""

from __future__ import annotations

from typing import Any

_ROWS = "swa_rows"


def get_cpu_copy(self, indices, *args, stock, **kwargs):
    """Hold sliding-window KV only of mapped slots."""
    if self.full_to_swa_index_mapping is None:
        return stock(self, indices, *args, **kwargs)
    slots = self.full_to_swa_index_mapping[indices]
    mapped = slots > 0
    if bool(mapped.all()):
        return stock(self, indices, *args, **kwargs)
    return {
        "full": self.full_kv_pool.get_cpu_copy(indices),
        "swa": self.swa_kv_pool.get_cpu_copy(slots[mapped]),
        _ROWS: mapped.cpu(),
    }


def load_cpu_copy(self, kv_cache_cpu, indices, *args, stock, **kwargs):
    """Write the rows that the copy has and the pool maps now."""
    import torch

    if self.full_to_swa_index_mapping is None:
        return stock(self, kv_cache_cpu, indices, *args, **kwargs)
    slots = self.full_to_swa_index_mapping[indices]
    mapped = (slots > 0).cpu()
    copied = kv_cache_cpu.get(_ROWS)
    if copied is None:
        copied = torch.ones_like(mapped)
    if bool((mapped & copied).all()):
        return stock(self, kv_cache_cpu, indices, *args, **kwargs)
    self.full_kv_pool.load_cpu_copy(kv_cache_cpu["full"], indices)
    chunk = getattr(self.swa_kv_pool, "cpu_offloading_chunk_size", len(mapped))
    rows = _select(kv_cache_cpu["swa"], mapped[copied], chunk)
    self.swa_kv_pool.load_cpu_copy(rows, slots[(mapped & copied).to(slots.device)])
    return None


def _select(copy: Any, kept: Any, chunk: int) -> list[list[list[Any]]]:
    """Rows of a pool's copy, which is one list of chunks a layer, each with all its buffers.

    A chunk of the result has at most `chunk` rows, of buffers of shape ``(rows, ...)``; `kept` is
    bool of shape ``(all rows,)``.
    """
    import torch

    layers = []
    for chunks in copy:
        buffers = [torch.cat(pieces)[kept].split(chunk) for pieces in zip(*chunks, strict=True)]
        layers.append([list(pieces) for pieces in zip(*buffers, strict=True)])
    return layers
