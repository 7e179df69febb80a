"""The batches that the mamba cases play: requests of a prefill or of a decode."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

CHUNK = 64
"""Tokens between two positions at which a state can be tracked."""


@dataclass(frozen=True)
class Request:
    """One request of a batch."""

    new: int  # tokens in this batch
    cached: int = 0  # tokens that are there already
    tracked: bool = True  # whether its state is tracked
    seqlen: int | None = None  # tokens up to the tracked position; None for all

    @property
    def track_seqlen(self) -> int:
        """As the scheduler says it: -1 without tracking."""
        if not self.tracked:
            return -1
        return self.cached + self.new if self.seqlen is None else self.seqlen


@dataclass(frozen=True)
class Batch:
    """Requests of one forward."""

    requests: tuple[Request, ...]  # at least one
    tracking: bool = True  # whether the server tracks states at all
    mode: str = "EXTEND"  # or "MIXED"; or "DECODE", in which each request has one new token

    @property
    def tokens(self) -> int:
        """New tokens of all requests."""
        return sum(request.new for request in self.requests)


def _untracked(new: int, cached: int = 0) -> Request:
    return Request(new, cached, tracked=False)


PREFIX = (Batch((Request(65, 64), _untracked(9, 3))),)
"""The least scenario in which a tracked request has a cached prefix and another follows it."""

FORWARDS: dict[str, tuple[Batch, ...]] = {
    # one token over a boundary, on it with a prefix hit, forced before the end, too short to track
    "half": (Batch((Request(65), Request(64, 64), Request(70, 64, seqlen=129), _untracked(9, 3))),),
    "no mask": (Batch((Request(30), Request(5, 64)), tracking=False),),
    "none": (Batch((_untracked(20), _untracked(7, 64))),),
    "chunks": (Batch((Request(64), _untracked(8))), Batch((Request(65, 64),))),
}
"""Scenarios of whole forwards; the batches of one follow each other on the same states."""

METADATA = 60
"""Drawn batches whose metadata is compared: each takes milliseconds."""

EDGES = (
    Batch((Request(64),)),
    Batch((Request(65),)),
    Batch((_untracked(63),)),
    Batch((Request(128, 64), Request(64, 128), Request(192))),
    Batch((Request(70, 3, seqlen=68), Request(129, 64), _untracked(1, 1))),
    Batch((Request(65), Request(70, 64), _untracked(9)), mode="MIXED"),
    Batch((Request(130, 64), _untracked(1, 130)), mode="MIXED"),
)
"""What drawn batches may miss."""


def draw(random: Random) -> Batch:
    """A prefill of one to nine requests, with lengths on and around boundaries more often."""
    return Batch(tuple(_drawn(random, number) for number in range(random.randint(1, 9))))


def _drawn(random: Random, number: int) -> Request:
    new = random.choice((random.randint(1, 260), 63, 64, 65, 127, 128, 129, 192))
    cached = random.choice((0, CHUNK * random.randint(0, 5), random.randint(0, 200)))
    # The scheduler tracks requests with a whole chunk, to its end or to an earlier boundary.
    tracked = bool(random.randint(0, 1)) and new >= CHUNK
    forced = number % 3 == 2 and new > CHUNK
    seqlen = cached + new // CHUNK * CHUNK + 1 if forced else None
    return Request(new, cached, tracked, seqlen)
