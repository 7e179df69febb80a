"""With whose numbers FlashInfer MLA plans."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

import sglang_perf_patches
from sglang_perf_patches.proof.comparing import live
from sglang_perf_patches.proof.mla import wheels
from sglang_perf_patches.proof.mla.flashinfer_plan import EDGES, PATCH, plans
from sglang_perf_patches.sets.mla import flashinfer_plan


def run() -> None:
    """The host's, for verify and draft-extend where it has lengths; otherwise stock's."""
    case = {"draft": 3, "lengths": [40, 7], "padding": 1}
    stock, asked = flashinfer_plan._HostPlanned, []

    def counted(wrapper: Any, host: tuple[torch.Tensor, ...], *more: Any) -> Any:
        asked.append([values.tolist() for values in host])
        return stock(wrapper, host, *more)

    flashinfer_plan._HostPlanned = counted
    verifying, extending = ForwardMode.TARGET_VERIFY, ForwardMode.DRAFT_EXTEND_V2
    try:
        with live(PATCH):
            for host in (True, False):
                for mode in (verifying, extending, ForwardMode.DECODE, ForwardMode.EXTEND):
                    for graph in (True, False):
                        decoding = mode is ForwardMode.DECODE
                        plans({**case, "host": host or decoding, "mode": mode, "graph": graph})
    finally:
        flashinfer_plan._HostPlanned = stock
    verified = [[0, 3, 6, 9], [0, 43, 53, 57], [43, 10, 4]]  # with a row of padding
    extended = [[0, 3, 6], [0, 43, 53], [43, 10]]
    served = [verified, verified, extended, extended]  # an extend is eager either way
    assert asked == served, asked
    overlapped()
    waits()


def overlapped() -> None:
    """Before releases have a barrier, overlap scheduling keeps stock's wait."""
    kind = wheels.flashinfer_mla().FlashInferMLAAttnBackend
    barrier = not hasattr(kind, "init_forward_metadata_replay_cuda_graph")
    with live(PATCH, ran=barrier):
        plans({**EDGES[0], "overlap": True})
        state = sglang_perf_patches.activate(PATCH).of(PATCH)
        assert state.state == ("live" if barrier else "gated"), state
        assert barrier or "overlap" in state.reason, state


def waits() -> None:
    """A plan's memory is written again only when its copy is done; a stand-in replaces CUDA."""
    said: list[str] = []

    class Event:
        done = True

        def query(self) -> bool:
            return self.done

        def synchronize(self) -> None:
            said.append("copy")

        def record(self) -> None:
            said.append("record")

    class Stream:
        def synchronize(self) -> None:
            said.append("stream")

    class Planned:
        """A wrapper."""

    wrapper, other, pinned = Planned(), Planned(), flashinfer_plan.Pinned()
    with mock.patch.multiple(torch.cuda, Event=Event, current_stream=Stream):
        for each in (wrapper, wrapper, other):
            pinned.wait(each)
            pinned.queued(each)
        assert said == ["stream", "record", "record", "stream", "record"], said
        said.clear()
        Event.done = False
        pinned.wait(wrapper)
        pinned.forget(wrapper)
        pinned.wait(wrapper)
        assert said == ["copy", "stream"], said
