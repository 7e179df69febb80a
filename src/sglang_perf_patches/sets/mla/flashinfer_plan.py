"""mla.flashinfer-plan: FlashInfer MLA plans a speculative step from lengths that the host has.

Upstream: sgl-project/sglang#27689, for the verify and the draft-extend of spec v2.
"""

from __future__ import annotations

from functools import cache
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
            with known.replaying(parts["bs"], parts["seq_lens_cpu"], parts["forward_mode"]):
                inner(self, *given, **named)

        return init_forward_metadata_replay_cuda_graph

    patching.override(f"{BACKEND}.init_forward_metadata_replay_cuda_graph", make)
    _eager(patching, known)
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
            with known.replaying(forward_batch.batch_size, lengths, mode):
                inner(self, forward_batch)

        return init_forward_metadata_out_graph

    patching.override(f"{BACKEND}.init_forward_metadata_out_graph", make)
    _eager(patching, known)
    _plan_from_host(patching, known)


def _eager(patching: Patching, known: _Known) -> None:
    def make(inner: Any) -> Any:
        def init_forward_metadata(self: Any, forward_batch: Any) -> None:
            with known.eager(forward_batch):
                inner(self, forward_batch)

        return init_forward_metadata

    patching.override(f"{BACKEND}.init_forward_metadata", make)


class _Known:
    """The lengths of the verify or draft-extend that is being prepared, while one is.

    Attributes:
        lengths: integers on the CPU, (requests and padding rows,), or None: prefixes of a
            verify, the whole of a draft-extend.
        prefixes: of a draft-extend, likewise; None for a verify.
    """

    def __init__(self) -> None:
        self.lengths: Any = None
        self.prefixes: Any = None

    def replaying(self, bs: int, lengths: Any, mode: Any) -> _Known:
        exact = lengths is not None and not lengths.is_cuda and lengths.numel() >= bs
        self.lengths = lengths[:bs] if exact and mode.is_target_verify() else None
        return self

    def eager(self, forward_batch: Any) -> _Known:
        import torch

        lengths, mode = forward_batch.seq_lens_cpu, forward_batch.forward_mode
        if lengths is None or lengths.is_cuda or lengths.numel() != forward_batch.batch_size:
            return self
        if mode.is_target_verify():
            self.lengths = lengths
        elif mode.is_draft_extend_v2() and forward_batch.extend_prefix_lens_cpu is not None:
            prefixes = torch.as_tensor(forward_batch.extend_prefix_lens_cpu)
            if prefixes.numel() == lengths.numel() and not prefixes.is_cuda:
                self.lengths, self.prefixes = lengths, prefixes
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        self.lengths = self.prefixes = None

    def arguments(self, spec_info: Any) -> tuple[Any, Any, Any] | None:
        """What a plan that is asked for now is given; None where that is not known here."""
        if self.lengths is None:
            return None
        if self.prefixes is not None:
            if spec_info is not None:
                return None
            return extend_arguments(self.lengths, self.prefixes)
        if type(spec_info).__name__ != "EagleVerifyInput":
            return None
        return host_arguments(self.lengths, spec_info.draft_token_num)


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
        The first is shared by all plans of so many requests.
    """
    kv_indptr, whole = _sums(lengths + draft)
    return _steps(lengths.numel(), draft), kv_indptr, whole


def extend_arguments(lengths: Any, prefixes: Any) -> tuple[Any, Any, Any]:
    """The same of a draft-extend: `lengths` are of the prefixes and the tokens added to them."""
    return _sums(lengths - prefixes)[0], *_sums(lengths)


def _sums(counts: Any) -> tuple[Any, Any]:
    """The sums before each request, and the counts, int32 in one piece of host memory."""
    import torch

    bs = counts.numel()
    # Copies from memory that is not pinned would wait for the stream.
    both = torch.empty(2 * bs + 1, dtype=torch.int32, pin_memory=torch.cuda.is_available())
    both[0] = 0
    torch.cumsum(counts, 0, dtype=torch.int32, out=both[1 : bs + 1])
    whole = both[bs + 1 :]
    whole.copy_(counts)
    return both[: bs + 1], whole


@cache
def _steps(bs: int, draft: int) -> Any:
    """0, draft, 2 draft, …: never written, so a copy that is under way may go on reading it."""
    import torch

    made = torch.arange(0, (bs + 1) * draft, draft, dtype=torch.int32)
    return made.pin_memory() if torch.cuda.is_available() else made


def _plan_from_host(patching: Patching, known: _Known) -> None:
    refuse_platforms(patching)
    ran = patching.ran
    served = Served(patching)

    def make(inner: Any) -> Any:
        def update(self: Any, *given: Any, **named: Any) -> None:
            wrapper: Any = named.get("prefill_wrapper_paged")
            ragged = named.get("use_ragged", True)
            host = None
            if wrapper is not None and not ragged and known.lengths is not None and served():
                host = known.arguments(named.get("spec_info"))
            if host is not None:
                ran.seen = True
                named["prefill_wrapper_paged"] = _HostPlanned(wrapper, host)
            inner(self, *given, **named)

        return update

    patching.override(UPDATE, make)
