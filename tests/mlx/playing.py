"""Plays schedules of requests on stock sglang's MLX runner, and keeps what its layers computed."""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import tiny_models
from sglang.srt.hardware_backend.mlx.model_runner import MlxModelRunner

Step = tuple[Any, ...]
"""``("join", request, prompt length)``, ``("leave", request)``, ``("decode", requests)``, or
``("chain", requests, steps)``: steps of which each is built before the one before it is read."""

SCRIPTED: tuple[Step, ...] = (
    ("join", "a", 5),
    ("decode", "a"),
    ("join", "b", 23),
    ("decode", "ab"),
    ("join", "c", 24),
    ("join", "d", 24),
    ("decode", "abcd"),
    ("chain", "dbca", 4),
    ("leave", "b"),
    ("decode", "acd"),
    ("decode", "cd"),
    ("leave", "a"),
    ("chain", "cd", 3),
    ("join", "b", 6),
    ("decode", "bcd"),
    ("leave", "c"),
    ("leave", "d"),
    ("decode", "b"),
    ("join", "a", 7),
    ("chain", "ab", 12),
    ("join", "c", 40),
    ("decode", "abc"),
)
"""Batches of one, of equal and of unequal lengths, that cross the window of a windowed layer."""


def random_schedule(seed: int, steps: int = 24, most: int = 6) -> list[Step]:
    """Joins, leaves and decode steps of random requests, in random order within the batch."""
    chance = random.Random(seed)
    names = iter(f"r{number}" for number in range(steps))
    running: list[str] = []
    schedule: list[Step] = []
    while len(schedule) < steps:
        kind = chance.choice(("join", "leave", "decode", "decode", "chain"))
        if kind == "join" and len(running) < most:
            running.append(next(names))
            schedule.append(("join", running[-1], chance.choice((1, 2, 9, 9, 17, 33))))
        elif kind == "leave" and len(running) > 1:
            schedule.append(("leave", running.pop(chance.randrange(len(running)))))
        elif kind in {"decode", "chain"} and running:
            batch = chance.sample(running, chance.randint(1, len(running)))
            more = (chance.randint(2, 5),) if kind == "chain" else ()
            schedule.append((kind, batch, *more))
    return schedule


@dataclass
class Played:
    """What a schedule gave.

    Attributes:
        logits: sha256 of dtype, shape and bytes of each forward pass's logits, in order.
        tokens: each request's tokens, prompt included.
    """

    logits: list[str] = field(default_factory=list)
    tokens: dict[str, list[int]] = field(default_factory=dict)


class Player:
    """A fresh stock runner over one model."""

    def __init__(self, model: Path) -> None:
        self.runner = MlxModelRunner(str(model), disable_radix_cache=True, pool_size=1024)
        self.pending: list[mx.array] = []
        extract = self.runner._extract_logits

        def keep(output: Any) -> Any:
            logits = extract(output)
            self.pending.append(logits)
            return logits

        self.runner._extract_logits = keep

    def play(self, schedule: Sequence[Step]) -> Played:
        """Play a schedule from an empty runner."""
        played = Played()
        for kind, who, *more in schedule:
            if kind == "join":
                self.join(who, more[0])
            elif kind == "leave":
                self.leave(who)
            elif kind == "decode":
                self.runner.decode_batch(list(who))
            else:
                self._chain(list(who), more[0])
            played.logits += [_digest(logits) for logits in self.pending]
            self.pending.clear()
        played.tokens = {who: list(ids) for who, ids in self.runner._req_token_ids.items()}
        for who in played.tokens:
            self.leave(who)
        return played

    def join(self, who: str, length: int) -> None:
        """Prefill a request whose prompt is made of its name."""
        chance = random.Random(f"{who}{length}")
        prompt = [chance.randrange(tiny_models.VOCABULARY) for _ in range(length)]
        self.runner.prefill(who, prompt, prompt, [], [], 0)

    def leave(self, who: str) -> None:
        """Forget a request; its caches may serve the next one."""
        self.runner.remove_request(who)

    def primitives(self, batch: Sequence[str]) -> Counter[str]:
        """How many nodes of each primitive the graph of one decode step has; plays the step."""
        pending = self.runner.decode_batch_start(list(batch))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "step.dot")
            mx.export_to_dot(str(path), pending.lazy_tokens)
            lines = path.read_text().splitlines()
        labels = (line.partition('label ="')[2].partition('"')[0] for line in lines)
        mx.eval(pending.lazy_tokens)
        self.runner.decode_batch_finalize(pending)
        self.pending.clear()
        return Counter(label for label in labels if label)

    def _chain(self, batch: list[str], steps: int) -> None:
        last = self.runner.decode_batch_start(batch)
        for _ in range(steps - 1):
            following = self.runner.decode_batch_start_chained(last)
            mx.async_eval(following.lazy_tokens)
            self.runner.decode_batch_finalize(last)
            last = following
        self.runner.decode_batch_finalize(last)


@contextmanager
def model(name: str, dtype: str) -> Iterator[Path]:
    """A model's folder, which is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        tiny_models.write(Path(folder), name, dtype)
        yield Path(folder)


def _digest(logits: mx.array) -> str:
    mx.eval(logits)
    words = logits.view({1: mx.uint8, 2: mx.uint16, 4: mx.uint32}[logits.dtype.size])
    text = f"{logits.dtype} {logits.shape}".encode()
    return hashlib.sha256(text + np.array(words).tobytes()).hexdigest()
