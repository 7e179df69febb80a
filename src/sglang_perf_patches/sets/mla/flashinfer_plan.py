"""mla.flashinfer-plan: FlashInfer MLA plans a verify from lengths that the host has.

Upstream: sgl-project/sglang#27689, for the verify of a replayed graph.
"""

from __future__ import annotations

from typing import Any

from ...activation import Patching
from .situations import Served, refuse_platforms

_MODULE = "sglang.srt.layers.attention.flashinfer_mla_backend"
BACKEND = f"{_MODULE}:FlashInferMLAAttnBackend"
UPDATE = f"{_MODULE}:FlashInferMLAIndicesUpdaterPrefill.update"

_REPLAY = (
    "bs",
    "req_pool_indices",
    "seq_lens",
    "seq_lens_sum",
    "encoder_lens",
    "forward_mode",
    "spec_info",
    "seq_lens_cpu",
)


def install_replay(patching: Patching) -> None:
    """Up to 0.5.12.post1, where the replay is given its parts."""
    known = _Known()

    def make(inner: Any) -> Any:
        def init_forward_metadata_replay_cuda_graph(self: Any, *given: Any, **named: Any) -> None:
            parts = {**dict(zip(_REPLAY, given, strict=False)), **named}
            with known.during(parts["bs"], parts["seq_lens_cpu"], parts["forward_mode"]):
                inner(self, *given, **named)

        return init_forward_metadata_replay_cuda_graph

    patching.override(f"{BACKEND}.init_forward_metadata_replay_cuda_graph", make)
    _plan_from_host(patching, known)


def install_out_graph(patching: Patching) -> None:
    """From 0.5.13 on: captured and replayed graphs have one entry."""
    known = _Known()

    def make(inner: Any) -> Any:
        def init_forward_metadata_out_graph(
            self: Any, forward_batch: Any, in_capture: bool = False
        ) -> None:
            if in_capture:
                inner(self, forward_batch, in_capture=True)
                return
            lengths, mode = forward_batch.seq_lens_cpu, forward_batch.forward_mode
            with known.during(forward_batch.batch_size, lengths, mode):
                inner(self, forward_batch)

        return init_forward_metadata_out_graph

    patching.override(f"{BACKEND}.init_forward_metadata_out_graph", make)
    _plan_from_host(patching, known)


class _Known:
    """The prefix lengths of the verify that is being prepared, while one is.

    Attributes:
        lengths: integers on the CPU, (requests and padding rows,), or None.
    """

    def __init__(self) -> None:
        self.lengths: Any = None

    def during(self, bs: int, lengths: Any, mode: Any) -> _Known:
        exact = lengths is not None and not lengths.is_cuda and lengths.numel() >= bs
        self.lengths = lengths[:bs] if exact and mode.is_target_verify() else None
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        self.lengths = None


class _HostPlanned:
    """A wrapper of the wheel that is planned with the host's copies of three of its tensors.

    Its plan begins by copying them to the host, which waits for the stream.
    """

    def __init__(self, wrapper: Any, host: tuple[Any, Any, Any]) -> None:
        self._wrapper = wrapper
        self._host = host

    def plan(
        self, _qo_indptr: Any, _kv_indptr: Any, kv_indices: Any, _kv_lens: Any, *more: Any
    ) -> None:
        qo_indptr, kv_indptr, kv_lens = self._host
        self._wrapper.plan(qo_indptr, kv_indptr, kv_indices, kv_lens, *more)


def host_arguments(lengths: Any, draft: int) -> tuple[Any, Any, Any]:
    """``qo_indptr``, ``kv_indptr`` and the lengths of a verify's plan.

    Args:
        lengths: prefix lengths, integers on the CPU, (bs,).
        draft: tokens to verify per request.

    Returns:
        int32 on the CPU, in pinned memory where there is a GPU: (bs + 1,), (bs + 1,), (bs,).
    """
    import torch

    bs = lengths.numel()
    whole = (lengths + draft).to(torch.int32)
    kv_indptr = torch.zeros(bs + 1, dtype=torch.int32)
    torch.cumsum(whole, 0, out=kv_indptr[1:])
    made = (torch.arange(0, (bs + 1) * draft, draft, dtype=torch.int32), kv_indptr, whole)
    if torch.cuda.is_available():
        # Copies from other memory to the GPU would wait for the stream.
        return made[0].pin_memory(), made[1].pin_memory(), made[2].pin_memory()
    return made


def _plan_from_host(patching: Patching, known: _Known) -> None:
    refuse_platforms(patching)
    ran = patching.ran
    served = Served(patching)

    def make(inner: Any) -> Any:
        def update(self: Any, *given: Any, **named: Any) -> None:
            spec_info: Any = named.get("spec_info")
            wrapper: Any = named.get("prefill_wrapper_paged")
            if (
                known.lengths is None
                or wrapper is None
                or spec_info is None
                or type(spec_info).__name__ != "EagleVerifyInput"
                or not served()
            ):
                inner(self, *given, **named)
                return
            ran.seen = True
            host = host_arguments(known.lengths, spec_info.draft_token_num)
            named["prefill_wrapper_paged"] = _HostPlanned(wrapper, host)
            inner(self, *given, **named)

        return update

    patching.override(UPDATE, make)
