"""Lightning-attention prefills select their tracked rows on the host, once per forward."""

from __future__ import annotations

import copy
from itertools import accumulate

from ....model.declaration import Declaration, gains
from ....model.patch import of
from ..proven import ALL, RANKS
from ..references import ATTENTION, BASE, FORWARD_BATCH, LISTS

_BACKEND = f"{ATTENTION}.linear.lightning_backend:LightningAttentionBackend"
_BATCH = "sglang.srt.managers.schedule_batch:ScheduleBatch"

PATCH = Declaration(
    *(__name__, "0.5.10 … 0.5.23"),
    only_with=("lightning", "prefills", "torch"),
    gain_with="tracked prefix-cache",
    proven_with=dict.fromkeys((*ALL, *RANKS), "verify"),
    worth=gains(
        "with a 16B Ling's shape, 16 prompts get their first tokens in 0.877 of stock's time",
        "mamba.md#engine-rows-16",
    ),
    absent_because="this release has no lightning-attention backend of this kind",
    anchors=of(_BACKEND, "forward_extend", "_prefill_and_mix_infer"),
    depends=(
        *LISTS,
        f"{_BACKEND}.init_forward_metadata",
        f"{ATTENTION}.linear.linear_metadata:BailingLinearMetadata",
    ),
    anytime="what it leaves on a forward's metadata is read by its own code only",
)
PATCH.on("… 0.5.12.post1", only_with=("minimax-kernel",))
PATCH.on(
    "0.5.17 …",
    only_with=("planned-tracks",),
    # They fill and keep the lists that a batch has since 0.5.21.
    depends=(
        f"{BASE}._has_cpu_prefill_track_metadata",
        *of(_BATCH, "prepare_for_extend", "mix_with_running"),
        f"{FORWARD_BATCH}.mamba_track_aligned_lens",
    ),
)


@PATCH.setup()
def setup(patch):
    from .. import host  # noqa: F401  (loaded now, so that no forward has to)

    # Up to 0.5.12.post1 no layer tracks; ``minimax`` layers slice the batch by scalars. From 0.5.17
    # on the layers of ``seg_la`` plan the states that its kernel stores.
    patch.state.kernels = ("minimax",)


@PATCH.setup("0.5.13 … 0.5.16")
def setup_by_mask(patch):
    """Both kernels' layers select the tracked rows by the mask."""
    patch.state.kernels = ("seg_la", "minimax")


@PATCH.replaces(f"{_BACKEND}.forward_extend")
def forward_extend(self, q, k, v, layer, forward_batch, *args, patch, stock, **kwargs):
    """Give a layer row numbers in place of the mask, and the lengths on the CPU."""
    if self.linear_backend in patch.state.kernels:
        shadow = _kept(self.forward_metadata, "by rows", forward_batch, _by_rows)
        if shadow is not None:
            patch.ran.seen = True
            forward_batch = shadow
    return stock(self, q, k, v, layer, forward_batch, *args, **kwargs)


def _by_rows(forward_batch):
    import torch

    from .. import host

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


@PATCH.replaces(f"{_BACKEND}._prefill_and_mix_infer")
def _prefill_and_mix_infer(self, q, k, v, cache, slots, batch, layer, plan, *, stock):
    if plan.num_decodes == 0:  # otherwise a kernel reads the slots
        # Waits once per forward, not per request and layer; no host list has the slots.
        slots = _kept(plan, "slots", slots, lambda held: held.cpu())
    return stock(self, q, k, v, cache, slots, batch, layer, plan)


@PATCH.replaces(f"{_BACKEND}._prepare_seg_la_track_store", releases="0.5.17 …")
def _prepare_seg_la_track_store(self, forward_batch, metadata, *, patch, stock):
    """Stock's own planning once a forward; on the CPU, with row numbers for the slots, if known."""

    def plan(batch):
        import torch

        from .. import host

        slots = metadata.track_ssm_h_dst
        known = None if slots is None else host.prefill(batch)  # nothing is tracked
        if known is None:
            return stock(self, batch, metadata)
        patch.ran.seen = True
        if not known.keys() >= host.TRACKED.keys():
            return stock(self, batch, metadata)
        on_cpu, asked = copy.copy(metadata), copy.copy(batch)
        on_cpu.track_ssm_h_dst = torch.arange(slots.numel(), dtype=slots.dtype)
        on_cpu.mamba_cache_indices = torch.empty(0)  # stock reads only its device
        for name, values in known.items():
            setattr(asked, name, torch.tensor(values, dtype=getattr(batch, name).dtype))
        planned = stock(self, asked, on_cpu)
        if planned[0] is None:
            return planned
        lens, rows = host.to_device(planned, slots.device)
        stored = slots.index_select(0, rows.clamp(min=0))
        return lens, torch.where(rows < 0, rows, stored)

    return _kept(metadata, "track store", forward_batch, plan)


def _kept(metadata, name, key, make):
    """`make(key)`, called once for each metadata, that is for each forward."""
    kept = metadata.__dict__.setdefault("_sglang_perf_patches_kept", {})
    if name not in kept or kept[name][0] is not key:
        kept[name] = (key, make(key))
    return kept[name][1]
