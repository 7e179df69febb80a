"""A hypothesis state machine over a decode worker: requests come, run, are retracted and end."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from invariants import Witness

from sglang_perf_patches.bench.decode_worker import DecodeWorker, Shape

SHAPES = st.builds(
    lambda page, window, requests, growth, full, reserved, transfer, over: Shape(
        window=window,
        page_size=page,
        swa_tokens=-(-((window + page) * requests + growth) // page) * page,
        full_tokens=max(page, full // page * page),
        context=640,
        running=5,
        in_transfer=4,
        reserved=reserved,
        transfer_steps=transfer,
        over_allocation=over,
    ),
    page=st.sampled_from([1, 4, 16, 64]),
    window=st.sampled_from([1, 7, 32, 100]),
    requests=st.integers(2, 6),
    growth=st.sampled_from([0, 60, 100, 200]),
    full=st.integers(500, 1500),
    reserved=st.sampled_from([0, 5, 24]),
    transfer=st.integers(0, 2),
    over=st.sampled_from([0, 0, 3]),
)


class Episode(RuleBasedStateMachine):
    """One worker of a random shape, from empty to drained."""

    @initialize(shape=SHAPES, lengths=st.lists(st.integers(1, 200), min_size=2, max_size=5))
    def start(self, shape: Shape, lengths: list[int]) -> None:
        self.worker = DecodeWorker(shape)
        self.witness = Witness(self.worker)
        for length in lengths:
            self.worker.submit(length, 60)
        for _ in range(4):
            self.worker.step()
            self.witness.check()

    @rule(data=st.data(), new=st.sampled_from([1, 2, 17, 40, 90]), alike=st.integers(1, 3))
    def submit(self, data: st.DataObject, new: int, alike: int) -> None:
        shape = self.worker.shape
        page, window = shape.page_size, shape.window or 1
        near = [1, page - 1, page, page + 1, 3 * page, window, window + 1, window + page, 200]
        length = data.draw(st.sampled_from([n for n in near if n > 0]) | st.integers(1, 300))
        for _ in range(alike):
            self.worker.submit(length, new)

    @rule(steps=st.integers(1, 12))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.worker.step()
            self.witness.check()

    @rule()
    def admit(self) -> None:
        self.worker.admit()

    @precondition(lambda self: self.worker.transfers.queue)
    @rule(data=st.data())
    def abort_in_transfer(self, data: st.DataObject) -> None:
        last = len(self.worker.transfers.queue) - 1
        self.worker.abort_in_transfer(data.draw(st.integers(0, last)))

    @precondition(lambda self: self.worker.batch.reqs)
    @rule(data=st.data())
    def end_running(self, data: st.DataObject) -> None:
        self.worker.finish([data.draw(st.sampled_from(self.worker.batch.reqs))])

    @precondition(lambda self: len(self.worker.batch.reqs) > 1)
    @rule()
    def retract(self) -> None:
        """Retract as when memory is short: stock retracts one at least."""
        assert self.worker.retract()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "worker"):
            self.witness.check()

    def teardown(self) -> None:
        if hasattr(self, "worker"):
            self.worker.end_all()
            self.witness.check_drained()


def play(episodes: int, shrink: bool = True) -> None:
    """Play random episodes; raises what broke, with the shortest sequence of steps to it."""
    chosen = settings(
        max_examples=episodes,
        stateful_step_count=25,
        deadline=None,
        derandomize=episodes <= 100,
        database=None,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(Episode, settings=chosen)
