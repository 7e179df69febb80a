"""The `HybridServer` with drafts and requests that have a grammar, under overlap scheduling.

Where the release's scheduler says so, it takes a step's results before it launches the next one: as
always between two verifies if a grammar has to follow the accepted tokens. Requests that end then
are still in the next verify. A stand-in takes the place of the model, of what a verify accepts and
of its kernels: a row writes its state where the release's batch says, also after its request ended.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from sglang_perf_patches.verify.stock import called
from tests.proof.mamba.hybrid_parts import Launched, Results, Shape, accepted, committed
from tests.proof.mamba.hybrid_server import HybridServer
from tests.proof.requests import speculation


@dataclass(frozen=True)
class Constrained(Shape):
    """The settings of such a server; the algorithm is that of the speculation."""

    algorithm: str = "EAGLE"

    @property
    def more_arguments(self) -> dict[str, Any]:
        return {**super().more_arguments, "speculative_algorithm": self.algorithm}


class ConstrainedServer(HybridServer):
    """See the module; `freed` counts rows of verifies whose request was released before."""

    def __init__(self, shape: Constrained) -> None:
        super().__init__(shape)
        self.freed = 0
        algorithm = speculation()[shape.algorithm]
        self.scheduler.spec_algorithm = self.running.spec_algorithm = algorithm
        self._is_launching = False
        self._on_device: dict[str, list[int]] = {}
        self._pending: Launched | None = None

    def submit(self, ids: Any, new: int, *, grammar: bool = True) -> Any:
        req = super().submit(ids, new)
        if grammar:
            req.grammar = SimpleNamespace(finished=False, is_terminated=lambda: False)
        return req

    def is_idle(self) -> bool:
        return super().is_idle() and self._pending is None

    def _filter(self) -> None:
        if not self._is_launching:  # those that ended are left out of the next batch
            super()._filter()

    def _settle(self) -> None:
        step, self._pending = self._pending, None
        if step is not None and self._results is not None:
            for req in step.batch.reqs:
                if not req.finished():
                    committed(req).kv_committed_len -= step.claimed[req.rid]
                    self._results.take(req, step, step.counts[req.rid], self.shape.drafts)
                    if req.finished():
                        self.ended.append(req.rid)
        super()._settle()

    def _launch_and_settle(self, results: Results) -> None:
        self._filter()
        if not self.running.check_decode_mem():
            self._settle()
            if not self.running.check_decode_mem():
                self.retract()
        batch = self.running
        if not batch.reqs:
            self._settle()
            return
        self._is_launching = True
        claimed = _prepared(batch)
        if self._waits_for_results(batch):
            self._settle()
        self.freed += sum(req.finished() for req in batch.reqs)
        step = self._verify(batch, claimed)
        self._settle()
        self._pending = step
        self._is_launching = False

    def _waits_for_results(self, batch: Any) -> bool:
        scheduler = self.scheduler
        scheduler.result_queue = [None] * (self._pending is not None or bool(self._launched))
        return bool(called(scheduler.is_disable_overlap_for_batch, batch=batch, last_batch=None))

    def _verify(self, batch: Any, claimed: dict[str, int]) -> Launched:
        track(batch)
        into = batch.mamba_track_indices.tolist()
        counts = {}
        for req, slot in zip(batch.reqs, into, strict=True):
            ids = self._on_device.setdefault(req.rid, [*req.origin_input_ids, 5])
            counts[req.rid] = count = accepted(req, len(ids) - 1, self.shape.drafts)
            ids += [5] * count
            self._verify_one(req, ids, count, slot)
        return Launched(batch.copy(), into, counts, claimed)


def _prepared(batch: Any) -> dict[str, int]:
    """Prepare a verify; how many tokens the release counts of each request before it."""
    before = [committed(req).kv_committed_len for req in batch.reqs]
    drafts = importlib.import_module("sglang.srt.speculative.eagle_info").EagleDraftInput
    batch.spec_info = object.__new__(drafts)  # up to 0.5.14 its method prepares, and reads nothing
    batch.prepare_for_decode()
    batch.spec_info = None
    return {
        req.rid: committed(req).kv_committed_len - count
        for req, count in zip(batch.reqs, before, strict=True)
    }


def track(batch: Any) -> None:
    try:
        module = importlib.import_module("sglang.srt.speculative.spec_utils")
        function = module.prepare_mamba_track_for_verify
    except AttributeError:  # 0.5.13 calls this one instead
        module = importlib.import_module("sglang.srt.managers.schedule_batch")
        function = module.set_mamba_track_indices_from_reqs
    function(batch)
