"""mla.flashinfer-plan: FlashInfer MLA plans a speculative step from lengths that the host has.

Upstream: sgl-project/sglang#27689, for the verify and the draft-extend of spec v2.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from ...model.patching import Patching
from .host_copies import known
from .situations import VERIFY, Reason, Served, refuse_platforms

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
    """Up to 0.5.12.post1: the replay gets its parts as arguments."""
    batch = _Batch()

    def make(inner: Any) -> Any:
        def init_forward_metadata_replay_cuda_graph(self: Any, *given: Any, **named: Any) -> None:
            parts = {**dict(zip(_REPLAY, given, strict=False)), **named}
            with batch.replaying(parts["bs"], parts["seq_lens_cpu"], parts["forward_mode"]):
                inner(self, *given, **named)

        return init_forward_metadata_replay_cuda_graph

    patching.override(f"{BACKEND}.init_forward_metadata_replay_cuda_graph", make)
    _eager(patching, batch)
    _plan_from_host(patching, batch, overlapped)


def overlapped(arguments: Any) -> str | None:
    """For releases without a barrier behind the reads of a running step, up to 0.5.12.post1."""
    if arguments.disable_overlap_schedule:
        return None
    return "with overlap scheduling the plan's wait also keeps the next batch from rewriting tables"


def install_out_graph(patching: Patching) -> None:
    """From 0.5.13 on: captured and replayed graphs have one entry."""
    batch = _Batch()

    def make(inner: Any) -> Any:
        def init_forward_metadata_out_graph(
            self: Any, forward_batch: Any, in_capture: bool = False
        ) -> None:
            if in_capture:
                inner(self, forward_batch, in_capture=True)
                return
            lengths, mode = forward_batch.seq_lens_cpu, forward_batch.forward_mode
            with batch.replaying(forward_batch.batch_size, lengths, mode):
                inner(self, forward_batch)

        return init_forward_metadata_out_graph

    patching.override(f"{BACKEND}.init_forward_metadata_out_graph", make)
    _eager(patching, batch)
    _plan_from_host(patching, batch)


def _eager(patching: Patching, batch: _Batch) -> None:
    def make(inner: Any) -> Any:
        def init_forward_metadata(self: Any, forward_batch: Any) -> None:
            with batch.eager(forward_batch):
                inner(self, forward_batch)

        return init_forward_metadata

    patching.override(f"{BACKEND}.init_forward_metadata", make)


class _Batch:
    """The lengths of the verify or draft-extend that is being prepared, while one is.

    Attributes:
        lengths: integers on the CPU, (requests and padding rows,), or None: prefixes of a
            verify, the whole of a draft-extend.
        prefixes: of a draft-extend, likewise; None for a verify.
    """

    def __init__(self) -> None:
        self.lengths: Any = None
        self.prefixes: Any = None

    def replaying(self, bs: int, lengths: Any, mode: Any) -> _Batch:
        exact = lengths is not None and not lengths.is_cuda and lengths.numel() >= bs
        self.lengths = lengths[:bs] if exact and mode.is_target_verify() else None
        return self

    def eager(self, forward_batch: Any) -> _Batch:
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
        """The arguments for a plan at this moment; None if they are not known here."""
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
    """A wrapper of the wheel whose plan gets three tensors that know their host copies.

    Its plan begins by copying them to the host, which waits for the stream; on the device they are
    what stock gives.
    """

    def __init__(self, wrapper: Any, host: tuple[Any, Any, Any], pinned: Pinned, ran: Any) -> None:
        self._wrapper = wrapper
        self._host = host
        self._pinned = pinned
        self._ran = ran

    def plan(
        self, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, kv_lens: Any, *more: Any
    ) -> None:
        given = zip((qo_indptr, kv_indptr, kv_lens), self._host, strict=True)
        qo, kv, lens = (known(tensor, host, self._ran) for tensor, host in given)
        if not kv_lens.is_cuda:
            self._wrapper.plan(qo, kv, kv_indices, lens, *more)
            return
        self._pinned.wait(self._wrapper)
        self._wrapper.plan(qo, kv, kv_indices, lens, *more)
        self._pinned.queued(self._wrapper)


class Pinned:
    """When the pinned memory of each wrapper, from which its last plan is copied, may be written.

    The copy is queued behind all other work. A plan of stock's waits for the whole stream before
    it writes there again; one that knows its lengths waits for that copy alone, which is done as a
    rule: much has been queued since, and awaited.
    """

    def __init__(self) -> None:
        """Nothing has been queued."""
        self._copied: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def wait(self, wrapper: Any) -> None:
        """Wait until the last plan's copy is done; for the stream where stock made that plan."""
        import torch

        copied = self._copied.get(wrapper)
        if copied is None:
            torch.cuda.current_stream().synchronize()
        elif not copied.query():
            copied.synchronize()

    def queued(self, wrapper: Any) -> None:
        """The copy of a plan has been queued."""
        import torch

        copied = self._copied.get(wrapper)
        if copied is None:
            copied = self._copied[wrapper] = torch.cuda.Event()
        copied.record()

    def forget(self, wrapper: Any) -> None:
        """Stock makes a plan."""
        self._copied.pop(wrapper, None)


def host_arguments(lengths: Any, draft: int) -> tuple[Any, Any, Any]:
    """``qo_indptr``, ``kv_indptr`` and the lengths of a verify's plan.

    Args:
        lengths: prefix lengths, integers on the CPU, (bs,).
        draft: tokens to verify per request.

    Returns:
        int32 on the CPU, (bs + 1,), (bs + 1,), (bs,). The first is shared by all plans of so many
        requests: it is to be read only.
    """
    whole = _int32(lengths.numpy() + draft)
    return _steps(lengths.numel(), draft), sums(whole), _tensor(whole)


def extend_arguments(lengths: Any, prefixes: Any) -> tuple[Any, Any, Any]:
    """The same of a draft-extend: `lengths` are of the prefixes and the tokens added to them."""
    whole, before = lengths.numpy(), prefixes.numpy()
    return sums(whole - before), sums(whole), _tensor(_int32(whole))


def sums(counts: Any) -> Any:
    """The sums before each request, and the whole.

    Args:
        counts: an array of integers, (bs,): NumPy takes a third of PyTorch's time for a few.

    Returns:
        an int32 tensor on the CPU, (bs + 1,).
    """
    import numpy as np

    found = np.zeros(counts.size + 1, np.int32)
    np.cumsum(counts, dtype=np.int32, out=found[1:])
    return _tensor(found)


def _int32(counts: Any) -> Any:
    return counts.astype("int32", copy=False)


def _tensor(values: Any) -> Any:
    import torch

    return torch.from_numpy(values)


@cache
def _steps(bs: int, draft: int) -> Any:
    """0, draft, 2 draft and so on."""
    import torch

    return torch.arange(0, (bs + 1) * draft, draft, dtype=torch.int32)


def _plan_from_host(patching: Patching, batch: _Batch, *reasons: Reason) -> None:
    refuse_platforms(patching)
    ran = patching.ran
    served = Served(patching, *VERIFY, *reasons)
    pinned = Pinned()

    def make(inner: Any) -> Any:
        def update(self: Any, *given: Any, **named: Any) -> None:
            wrapper: Any = named.get("prefill_wrapper_paged")
            ragged = named.get("use_ragged", True)
            host = None
            if wrapper is not None and not ragged and batch.lengths is not None and served():
                host = batch.arguments(named.get("spec_info"))
            if host is not None:
                named["prefill_wrapper_paged"] = _HostPlanned(wrapper, host, pinned, ran)
            elif wrapper is not None:
                pinned.forget(wrapper)
            inner(self, *given, **named)

        return update

    patching.override(UPDATE, make)
