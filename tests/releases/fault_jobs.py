"""What stock's own code computes where it has one of the known faults; `on_release` runs it.

The scheduler's batches, backends, layers and kernels are the release's, on Triton's interpreter.
"""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

import importlib
from types import SimpleNamespace
from typing import Any

from tests.proof import stubs

stubs.lend()

import torch

from sglang_perf_patches.verify.mamba.cases import Batch, Request
from sglang_perf_patches.verify.mamba.rig import Mamba2, Rig
from sglang_perf_patches.verify.stock import called
from tests.proof.mamba import scheduling
from tests.proof.mamba.harness import counter

_RUNNING = (Request(9), Request(70))
_NEW = (Request(65), Request(70))
"""Each reaches a position at which the scheduler claims a slot for its state."""


def mixed_chunks() -> dict[str, Any]:
    """Whether the slots that a mixed prefill claims for the prefix cache are written.

    Returns:
        ``claimed``: the tokens of each new request whose state the scheduler takes for cached;
        ``written`` and ``unmixed``: whether its slot was written, mixed and alone.
    """
    rig = Rig()
    with counter(), counter().paused():  # memory can't be pinned here
        alone, batch = scheduling.scheduled(rig, _NEW)
    unmixed = _written(rig, alone, batch)
    with counter(), counter().paused():
        running, _ = scheduling.scheduled(rig, _RUNNING)
        scheduling.decoding(rig, running)
        both, batch = scheduling.mixing(rig, running, _NEW)
    claimed = [_kept(request).mamba_last_track_seqlen for request in both.reqs[: len(_NEW)]]
    return {"claimed": claimed, "unmixed": unmixed, "written": _written(rig, both, batch)}


def _written(rig: Rig, schedule: Any, batch: Any) -> list[bool]:
    """For each new request, whether a forward writes the slot that its last state is taken from."""
    slots = []
    for request in map(_kept, schedule.reqs[: len(_NEW)]):
        # The slot that the cache would take the state of a request from.
        at = rig.pool.get_mamba_ping_pong_other_idx(request.mamba_next_track_idx)
        slots.append(int(request.mamba_ping_pong_track_buffer[at]))
    rig.fill()
    before = rig.states()[-1][:, slots].clone()
    rig.forward(batch, rig.inputs(int(batch.extend_num_tokens)))
    after = rig.states()[-1][:, slots]
    return [not torch.equal(before[:, at], after[:, at]) for at in range(len(slots))]


def _kept(request: Any) -> Any:
    """Where a request's states are noted: on itself, since 0.5.19 or so below ``kv``."""
    return request if hasattr(request, "mamba_last_track_seqlen") else request.kv


def mamba2_states() -> list[float]:
    """How far each cached state of several prompts' prefill is from that of its prompt alone."""
    requests = [Request(length) for length in (70, 80, 70)]
    rig = Mamba2()
    together = _tracked(rig, requests, rig.inputs(220))
    apart = []
    start = 0
    for request in requests:
        inputs = [
            {name: tensor[start : start + request.new] for name, tensor in of_layer.items()}
            for of_layer in rig.inputs(220)
        ]
        apart.append(_tracked(rig, [request], inputs)[0])
        start += request.new
    return [
        float((one - other).abs().max() / other.abs().max())
        for one, other in zip(together, apart, strict=True)
    ]


def _tracked(rig: Rig, requests: list[Request], inputs: Any) -> list[torch.Tensor]:
    rig.fill()
    batch = rig.batch(Batch(tuple(requests)))
    rig.forward(batch, inputs)
    states = rig.states()[-1]
    return [states[:, slot].float().clone() for slot in batch.mamba_track_indices.tolist()]


def mamba2_cached_prefix() -> float:
    """How far the outputs of a short rest of a prompt are from those without tracking."""
    rig = Mamba2()
    outputs = []
    for tracking in (True, False):
        rig.fill()
        rest = Request(9, 192, tracked=False)
        batch = rig.batch(Batch((Request(70), rest), tracking=tracking))
        outputs.append(torch.stack(rig.forward(batch, rig.inputs(79)))[:, 70:].float())
    return float((outputs[0] - outputs[1]).abs().max() / outputs[1].abs().max())


def verified_window() -> list[int]:
    """The first and last of 1,000 tokens that a verify with a window reads on FlashInfer."""
    backend = importlib.import_module("sglang.srt.layers.attention.flashinfer_backend")
    info = importlib.import_module("sglang.srt.speculative.eagle_info")
    planned: list[Any] = []

    class Updater(backend.FlashInferIndicesUpdaterPrefill):  # type: ignore[misc, name-defined]
        """The release's, which plans a wrapper."""

        def __init__(self) -> None:
            self.sliding_window_size = 128
            self.kv_indptr = self.qo_indptr = [None, None]

        def __getattr__(self, name: str) -> None:
            return None

        def call_begin_forward(self, *given: Any, **_: Any) -> None:
            planned.append(given)

    lens = torch.tensor([1000])
    drafts = object.__new__(info.EagleVerifyInput)
    drafts.draft_token_num, drafts.custom_mask = 4, torch.ones(4 * 1004, dtype=torch.bool)
    called(
        Updater().update_sliding_window,
        req_pool_indices=torch.tensor([0]),
        seq_lens=lens,
        seq_lens_cpu=lens,
        seq_lens_sum=1000,
        prefix_lens=None,
        prefill_wrappers=[None, None],
        use_ragged=False,
        encoder_lens=None,
        spec_info=drafts,
        plan=None,
    )
    row, widths, total = planned[0][2:5]

    def pack(_: Any, *, out: torch.Tensor, kv_start_idx: Any = None, **__: Any) -> None:
        out.copy_(torch.arange(len(out)) + (0 if kv_start_idx is None else kv_start_idx))

    read, *_ = called(
        drafts.generate_attn_arg_prefill,
        req_pool_indices=row,
        paged_kernel_lens=widths,
        paged_kernel_lens_sum=int(total),
        req_to_token=torch.arange(1024, dtype=torch.int32)[None],
        translator=SimpleNamespace(
            pack_read_stream=pack
        ),  # what reads the table since 0.5.22 or so
        plan=None,
    )
    return [int(read[0]), int(read[-1])]
