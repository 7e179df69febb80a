"""Episodes of a decode worker: requests come, run, are retracted and end, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from sglang_perf_patches.verify.comparing import require
from tests.proof.swa.pool_invariants import Witness
from tests.proof.swa.rig import DecodeWorker
from tests.proof.swa.shape import Shape

PAGES = (1, 4, 16, 64)
WINDOWS = (1, 7, 32, 100)
GROWTHS = (0, 60, 100, 200)
RESERVES = (0, 5, 24)
OVER_ALLOCATIONS = (0, 0, 3)
OUTPUTS = (1, 2, 17, 40, 90)
BACKUPS = ("default", "cpu_tensor")
RULES = 10


def shape(*, page: int, window: int, requests: int, growth: int, full: int, **more: Any) -> Shape:
    """A small worker: sliding-window KV for so many requests' tails and so much growth."""
    return Shape(
        window=window,
        page_size=page,
        swa_tokens=-(-((window + page) * requests + growth) // page) * page,
        full_tokens=max(page, full // page * page),
        context=640,
        running=5,
        in_transfer=4,
        **more,
    )


def lengths_near(shape: Shape) -> list[int]:
    """Prompt lengths around a page and the window."""
    page, window = shape.page_size, shape.window or 1
    near = [1, page - 1, page, page + 1, 3 * page, window, window + 1, window + page, 200]
    return [length for length in near if length > 0]


class Episode:
    """One worker, from empty to drained; every invariant is checked after every step."""

    def __init__(self, shape: Shape, lengths: Sequence[int]) -> None:
        self.worker = DecodeWorker(shape)
        self.witness = Witness(self.worker)
        for length in lengths:
            self.worker.submit(length, 60)
        self.run(4)

    def submit(self, length: int, output: int, alike: int) -> None:
        for _ in range(alike):
            self.worker.submit(length, output)
        self.witness.check()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.worker.step()
            self.witness.check()

    def admit(self) -> None:
        self.worker.admit()
        self.witness.check()

    def abort_in_transfer(self, index: int) -> None:
        self.worker.abort_in_transfer(index)
        self.witness.check()

    def end_running(self, index: int) -> None:
        self.worker.finish([self.worker.batch.reqs[index]])
        self.witness.check()

    def retract(self) -> None:
        """Retract as when memory is short: stock retracts one at least."""
        aborted = self.worker.counts.aborted  # where the host has no room
        retracted = self.worker.retract() or self.worker.counts.aborted > aborted
        require(retracted, "nothing was retracted")
        self.witness.check()

    def end(self) -> int:
        """End every request at once; returns how often everything was checked."""
        self.worker.end_all()
        self.witness.check_drained()
        return self.witness.checks


def play(random: Random, pages: Sequence[int] = PAGES) -> int:
    """Play a random episode; how often everything was checked."""
    chosen = shape(
        page=random.choice(pages),
        window=random.choice(WINDOWS),
        requests=random.randint(2, 6),
        growth=random.choice(GROWTHS),
        full=random.randint(500, 1500),
        reserved=random.choice(RESERVES),
        transfer_steps=random.randint(0, 2),
        over_allocation=random.choice(OVER_ALLOCATIONS),
        backup=random.choice(BACKUPS),
    )
    lengths = [random.randint(1, 200) for _ in range(random.randint(2, 5))]
    episode = Episode(chosen, lengths)
    for _ in range(RULES):
        any_rule(episode, random)
    return episode.end()


def any_rule(episode: Episode, random: Random) -> None:
    worker = episode.worker
    rules = ["submit", "run", "run", "admit"]
    rules += ["abort_in_transfer"] if worker.transfers.queue else []
    rules += ["end_running"] if worker.batch.reqs else []
    rules += ["retract"] if len(worker.batch.reqs) > 1 else []
    match random.choice(rules):
        case "submit":
            length = random.choice([*lengths_near(worker.shape), random.randint(1, 300)])
            episode.submit(length, random.choice(OUTPUTS), random.randint(1, 3))
        case "run":
            episode.run(random.randint(1, 12))
        case "abort_in_transfer":
            episode.abort_in_transfer(random.randrange(len(worker.transfers.queue)))
        case "end_running":
            episode.end_running(random.randrange(len(worker.batch.reqs)))
        case rule:
            getattr(episode, rule)()
