"""A hypothesis state machine over a decode worker: requests come, run, are retracted and end."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.proof.swa import episodes
from tests.proof.swa.shape import Shape

SHAPE = st.builds(
    episodes.shape,
    page=st.sampled_from(episodes.PAGES),
    window=st.sampled_from(episodes.WINDOWS),
    requests=st.integers(2, 6),
    growth=st.sampled_from(episodes.GROWTHS),
    full=st.integers(500, 1500),
    reserved=st.sampled_from(episodes.RESERVES),
    transfer_steps=st.integers(0, 2),
    over_allocation=st.sampled_from(episodes.OVER_ALLOCATIONS),
    backup=st.sampled_from(episodes.BACKUPS),
)


class Episode(RuleBasedStateMachine):
    """One worker of a random shape, from empty to drained."""

    played: ClassVar[Counter[str]] = Counter()

    layouts: ClassVar[tuple[str, ...]] = ("one",)

    @initialize(
        data=st.data(), shape=SHAPE, lengths=st.lists(st.integers(1, 200), min_size=2, max_size=5)
    )
    def start(self, data: st.DataObject, shape: Shape, lengths: list[int]) -> None:
        shape = replace(shape, layout=data.draw(st.sampled_from(self.layouts)))
        self.episode = episodes.Episode(shape, lengths)

    @rule(data=st.data(), output=st.sampled_from(episodes.OUTPUTS), alike=st.integers(1, 3))
    def submit(self, data: st.DataObject, output: int, alike: int) -> None:
        near = episodes.lengths_near(self.episode.worker.shape)
        length = data.draw(st.sampled_from(near) | st.integers(1, 300))
        self.episode.submit(length, output, alike)

    @rule(steps=st.integers(1, 12))
    def run(self, steps: int) -> None:
        self.episode.run(steps)

    @rule()
    def admit(self) -> None:
        self.episode.admit()

    @precondition(lambda self: self.episode.worker.transfers.queue)
    @rule(data=st.data())
    def abort_in_transfer(self, data: st.DataObject) -> None:
        last = len(self.episode.worker.transfers.queue) - 1
        self.episode.abort_in_transfer(data.draw(st.integers(0, last)))

    @precondition(lambda self: self.episode.worker.batch.reqs)
    @rule(data=st.data())
    def end_running(self, data: st.DataObject) -> None:
        self.episode.end_running(data.draw(st.integers(0, len(self.episode.worker.batch.reqs) - 1)))

    @precondition(lambda self: len(self.episode.worker.batch.reqs) > 1)
    @rule()
    def retract(self) -> None:
        self.episode.retract()

    def teardown(self) -> None:
        if hasattr(self, "episode"):
            counts = asdict(self.episode.worker.counts)
            del counts["peak_admitted"]
            self.played.update(counts, episodes=1)
            self.episode.end()


def play(episodes: int, shrink: bool = True, layouts: Sequence[str] = ("one",)) -> dict[str, int]:
    """Play random episodes on servers of these layouts (see `Shape`); what happened in them.

    Raises what broke, with the shortest sequence of steps to it if that is looked for. Up to 100
    episodes are always the same ones, and further ones differ each time.
    """
    machine = type("Episode", (Episode,), {"layouts": tuple(layouts)})
    Episode.played.clear()
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
    run_state_machine_as_test(machine, settings=chosen)
    return dict(Episode.played)
