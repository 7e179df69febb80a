"""mla.flashinfer-verify-plan: FlashInfer plans a replayed verify from lengths that the host has.

The wheel's plan copies three tensors to the host, each of which waits for the stream, and a fourth
wait sizes the packed tree mask. All four are sums of lengths that the host knows. From 0.5.23 on
stock has a plan that takes them from the host, ``fast_prefill_plan``, and gives it to an EAGLE
verify behind SGLANG_OPT_FLASHINFER_VERIFY_HOST_PLAN, off by default, where topk = 1. Before that
the wheel's own plan gets tensors that know their copies, and a kernel packs the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from ...model.patching import Patching
from .flashinfer_plan import Pinned, host_arguments, sums
from .host_copies import known
from .situations import VERIFY, Served, refuse_platforms

_MODULE = "sglang.srt.layers.attention.flashinfer_backend"
BACKEND = f"{_MODULE}:FlashInferAttnBackend"

Planner = Callable[[Any, Any, int], Any]
"""``planner(wrapper, lengths, draft)``: what the wrapper's ``begin_forward`` is replaced with."""


def install(patching: Patching) -> None:
    """Up to 0.5.22: the wheel's plan, with tensors that know their copies on the host."""
    ran = patching.ran
    _around_replays(patching, lambda wrapper, lengths, draft: _Known(wrapper, lengths, draft, ran))


def install_stock_plan(patching: Patching) -> None:
    """From 0.5.23 on: stock's plan, which computes what it needs from the batch's lengths."""
    ran = patching.ran
    plan: Any = patching.get(f"{_MODULE}:fast_prefill_plan")

    def planner(wrapper: Any, _lengths: Any, _draft: int) -> Any:
        ran.seen = True
        return partial(plan, wrapper)

    # The wheel plans others, FP4 on some GPUs, without splitting; stock's plan does not know that.
    _around_replays(patching, planner, lambda backend: str(_kv(backend)) in _SPLIT_KV)


_SPLIT_KV = ("torch.bfloat16", "torch.float16", "torch.float8_e4m3fn", "torch.float8_e5m2")


def _kv(backend: Any) -> Any:
    return backend.flashinfer_kv_cache_dtype


def _around_replays(
    patching: Patching, planner: Planner, serves: Callable[[Any], bool] = lambda _: True
) -> None:
    refuse_platforms(patching)
    served = Served(patching, *VERIFY)
    pinned = Pinned()

    def make(inner: Any) -> Any:
        def init_forward_metadata_out_graph(
            self: Any, forward_batch: Any, in_capture: bool = False
        ) -> None:
            if in_capture:  # the first plan loads the wheel's module
                inner(self, forward_batch, in_capture=True)
                return
            wrapper = _wrapper(self, forward_batch) if serves(self) else None
            if wrapper is None:
                inner(self, forward_batch)
                return
            lengths = _lengths(forward_batch)
            if lengths is None or not served():
                pinned.forget(wrapper)
                inner(self, forward_batch)
                return
            draft = forward_batch.spec_info.draft_token_num
            with _planned_by(wrapper, planner(wrapper, lengths, draft), pinned):
                inner(self, forward_batch)

        return init_forward_metadata_out_graph

    patching.override(f"{BACKEND}.init_forward_metadata_out_graph", make)


def _wrapper(backend: Any, forward_batch: Any) -> Any:
    """The one wrapper of a replayed EAGLE verify whose plan is the wheel's; None if there is none.

    Sliding windows and cross attention have two, whose lengths are others.
    """
    if not forward_batch.forward_mode.is_target_verify():
        return None
    if type(forward_batch.spec_info).__name__ != "EagleVerifyInput":
        return None
    if backend.dispatch_reason is not None or backend.prefill_backend != "fa2":
        return None
    wrappers = backend.prefill_cuda_graph_metadata.get(forward_batch.batch_size, ())
    if len(wrappers) != 1 or "begin_forward" in vars(wrappers[0]):
        return None  # stock gave it a plan of its own already
    return wrappers[0]


def _lengths(forward_batch: Any) -> Any:
    """The prefix lengths of requests and padding rows, (bs,); None if the host has none."""
    lengths, bs = forward_batch.seq_lens_cpu, forward_batch.batch_size
    if lengths is None or lengths.is_cuda or lengths.numel() < bs:
        return None
    return lengths[:bs]


@contextmanager
def _planned_by(wrapper: Any, plan: Any, pinned: Pinned) -> Iterator[None]:
    """Let `plan` take the place of the wrapper's own, once its pinned memory may be written."""
    on_gpu = _on_gpu(wrapper)
    if on_gpu:
        pinned.wait(wrapper)
    wrapper.begin_forward = plan
    try:
        yield
    finally:
        del wrapper.begin_forward
        if on_gpu:
            pinned.queued(wrapper)


def _on_gpu(wrapper: Any) -> bool:
    return bool(getattr(getattr(wrapper, "device", None), "type", "") == "cuda")


class _Known:
    """The wheel's plan of one verify, whose three tensors know their copies on the host.

    The mask is packed into the wrapper's buffer here: the wheel would ask the GPU for its size.
    """

    def __init__(self, wrapper: Any, lengths: Any, draft: int, ran: Any) -> None:
        self._wrapper, self._plan = wrapper, wrapper.begin_forward
        self._lengths, self._draft, self._ran = lengths, draft, ran

    def __call__(
        self,
        qo_indptr: Any,
        kv_indptr: Any,
        kv_indices: Any,
        last_page_len: Any,
        *more: Any,
        custom_mask: Any = None,
        **named: Any,
    ) -> None:
        steps, ends, whole = host_arguments(self._lengths, self._draft)
        self._plan(
            known(qo_indptr, steps, self._ran),
            known(kv_indptr, ends, self._ran),
            kv_indices,
            known(last_page_len, _ones(whole.numel()), self._ran),
            *more,
            **named,
        )
        if custom_mask is not None:
            _pack(custom_mask, whole, self._draft, self._wrapper)


@cache
def _ones(count: int) -> Any:
    """The tokens of each request's last page: pages of one token."""
    import torch

    return torch.ones(count, dtype=torch.int32)


def _pack(mask: Any, whole: Any, draft: int, wrapper: Any) -> None:
    """Pack the cells of each request's tree mask into bits, the first in the lowest.

    Args:
        mask: bool on the device, the cells of one request after the other's, and perhaps more.
        whole: tokens of each request, its draft among them, int32 on the CPU, (bs,).
        draft: tokens to verify per request.
        wrapper: its ``_custom_mask_buf`` gets the bytes, each request's from a whole one on, and
            its ``_mask_indptr_buf`` where they begin.
    """
    import numpy as np
    import torch

    from .packed_masks import pack

    cells = whole.numpy() * draft
    both = np.stack([sums(cells), sums((cells + 7) // 8)])
    starts = torch.from_numpy(both).to(mask.device, non_blocking=True)
    wrapper._mask_indptr_buf.copy_(starts[1], non_blocking=True)
    pack(mask.contiguous().view(-1), starts, wrapper._custom_mask_buf, int(cells.max()))
