"""``mamba.lightning-rows``: which rows a lightning-attention prefill tracks, from the host."""

from __future__ import annotations

import copy
from itertools import accumulate
from typing import Any

from ....model.patching import Patching
from . import BACKEND

_KEPT = "_sglang_perf_patches_kept"


def install_for_minimax(patching: Patching) -> None:
    """0.5.10 to 0.5.12.post1: no layer tracks; ``minimax`` layers slice the batch by scalars."""
    _select_by_rows(patching, ("minimax",))


def install(patching: Patching) -> None:
    """0.5.13 to 0.5.16: both kernels' layers select the tracked rows by the mask."""
    _select_by_rows(patching, ("seg_la", "minimax"))


def install_with_track_store(patching: Patching) -> None:
    """From 0.5.17 on: the layers of ``seg_la`` plan the states that its kernel stores."""
    _select_by_rows(patching, ("minimax",))
    patching.override(f"{BACKEND}._prepare_seg_la_track_store", _track_store(patching))


def _select_by_rows(patching: Patching, kernels: tuple[str, ...]) -> None:
    """Give a layer row numbers in place of the mask, and the lengths on the CPU."""
    import torch

    from .. import host

    patching.anytime("what it leaves on a forward's metadata is read by its own code only")
    ran = patching.ran

    def forward_extend(inner: Any) -> Any:
        def forward_extend(
            self: Any,
            q: Any,
            k: Any,
            v: Any,
            layer: Any,
            forward_batch: Any,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            if self.linear_backend in kernels:
                shadow = _kept(self.forward_metadata, "by rows", forward_batch, _by_rows)
                if shadow is not None:
                    ran.seen = True
                    forward_batch = shadow
            return inner(self, q, k, v, layer, forward_batch, *args, **kwargs)

        return forward_extend

    def _by_rows(forward_batch: Any) -> Any:
        known = host.prefill(forward_batch)
        if known is None:
            return None
        shadow = copy.copy(forward_batch)
        lens = known["extend_seq_lens"]
        starts = [0, *accumulate(lens[:-1])]
        for name, values in (("extend_seq_lens", lens), ("extend_start_loc", starts)):
            dtype = getattr(forward_batch, name).dtype
            setattr(shadow, name, torch.tensor(values, dtype=dtype))
        if forward_batch.mamba_track_mask is not None:
            # Waits once per forward, not in each layer.
            shadow.mamba_track_mask = forward_batch.mamba_track_mask.nonzero(as_tuple=True)[0]
        return shadow

    def infer(inner: Any) -> Any:
        def _prefill_and_mix_infer(
            self: Any,
            q: Any,
            k: Any,
            v: Any,
            cache: Any,
            slots: Any,
            batch: Any,
            layer: Any,
            plan: Any,
        ) -> Any:
            if plan.num_decodes == 0:  # otherwise a kernel reads the slots
                # Waits once per forward, not per request and layer; no host list has the slots.
                slots = _kept(plan, "slots", slots, lambda held: held.cpu())
            return inner(self, q, k, v, cache, slots, batch, layer, plan)

        return _prefill_and_mix_infer

    patching.override(f"{BACKEND}.forward_extend", forward_extend)
    patching.override(f"{BACKEND}._prefill_and_mix_infer", infer)


def _track_store(patching: Patching) -> Any:
    """Stock's own planning once a forward; on the CPU, with row numbers for the slots, if known."""
    import torch

    from .. import host

    ran = patching.ran

    def make(inner: Any) -> Any:
        def _prepare_seg_la_track_store(self: Any, forward_batch: Any, metadata: Any) -> Any:
            def plan(batch: Any) -> Any:
                slots = metadata.track_ssm_h_dst
                known = None if slots is None else host.prefill(batch)  # nothing is tracked
                if known is None:
                    return inner(self, batch, metadata)
                ran.seen = True
                if not host.knows_tracked(known):
                    return inner(self, batch, metadata)
                on_cpu, asked = copy.copy(metadata), copy.copy(batch)
                on_cpu.track_ssm_h_dst = torch.arange(slots.numel(), dtype=slots.dtype)
                on_cpu.mamba_cache_indices = torch.empty(0)  # stock reads only its device
                for name, values in known.items():
                    dtype = getattr(batch, name).dtype
                    setattr(asked, name, torch.tensor(values, dtype=dtype))
                planned = inner(self, asked, on_cpu)
                if planned[0] is None:
                    return planned
                lens, rows = host.to_device(planned, slots.device)
                stored = slots.index_select(0, rows.clamp(min=0))
                return lens, torch.where(rows < 0, rows, stored)

            return _kept(metadata, "track store", forward_batch, plan)

        return _prepare_seg_la_track_store

    return make


def _kept(metadata: Any, name: str, key: Any, make: Any) -> Any:
    """`make(key)`, called once for each metadata, that is for each forward."""
    kept = metadata.__dict__.setdefault(_KEPT, {})
    if name not in kept or kept[name][0] is not key:
        kept[name] = (key, make(key))
    return kept[name][1]
