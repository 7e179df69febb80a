"""Plays schedules of requests on stock sglang's MLX runner, and keeps the results."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import cycle
from random import Random
from typing import Any

import mlx.core as mx

from .cases import Step
from .models import Model, runner

SAMPLING = "sglang.srt.hardware_backend.mlx.sampling"  # in releases that sample on MLX
SLOTS = 4096  # size of the radix cache's pool, in tokens
_BLOCK = 64


@dataclass
class Played:
    """The results of a schedule; hashes are sha256 of dtype, shape and bytes."""

    logits: list[str] = field(default_factory=list)  # of each pass; a prefill's last position
    tokens: dict[str, list[int]] = field(default_factory=dict)  # of each request, with its prompt
    pool: dict[str, str] = field(default_factory=dict)  # the KV that each request left in the pool


class Player:
    """A fresh stock runner over one model, with the radix cache or without.

    With `sampling`, each decoded token is sampled from its request's seed and its position;
    otherwise decoding is greedy.
    """

    def __init__(self, model: Model, *, radix: bool = False, sampling: bool = False) -> None:
        self._model = model
        self._pool: _RequestPool | None = None
        self._is_sampling = sampling
        options: dict[str, Any] = {"disable_radix_cache": not radix, "pool_size": SLOTS}
        if sampling:
            options["enable_sampling"] = True
        self.runner = runner(model, **options)  # stock's ``MlxModelRunner``
        if radix:
            self._pool = _RequestPool()
            start = getattr(self.runner, "init_cache_pools", None) or self.runner.init_kv_pool
            start(self._pool)
        self.pending: list[mx.array] = []  # logits of the passes since it was last cleared
        self.played = Played()  # what the schedule that runs gave so far
        self.note: Callable[[mx.array], object] = lambda _: None  # gets what `play` hashes
        self._held: dict[str, int] = {}
        self._donated: dict[str, tuple[list[int], list[int]]] = {}
        extract = self.runner._extract_logits

        def keep(output: Any) -> Any:
            logits = extract(output)
            self.pending.append(logits[:, -1])
            return logits

        self.runner._extract_logits = keep

    def play(self, schedule: Sequence[Step], *, ends: bool = True) -> Played:
        """Play a schedule on an empty runner; unless it `ends`, its requests stay for the next."""
        self.played = Played()
        for kind, *step in schedule:
            getattr(self, kind)(*step)
            for logits in self.pending:
                self.played.logits.append(digest(logits))
                self.note(logits)
            self.pending.clear()
        if ends:
            for who in list(self._held):
                self.leave(who)
            self.note_pool()
        return self.played

    def join(self, who: str, length: int) -> None:
        """Prefill a request; its name determines the prompt."""
        self._prefill(who, self._words(f"{who}{length}", length), [])

    def leave(self, who: str) -> None:
        """Remove a request; the next one may reuse its caches."""
        if self._pool is not None:
            length = self._held[who]
            self._donated[who] = (self.tokens(who)[:length], self._pool.slots(who, 0, length))
            if hasattr(self.runner, "release_request_row"):
                self.runner.release_request_row(who, length)
        self.drop(who)

    def drop(self, who: str) -> None:
        """Remove a request whose tokens do not enter the pool."""
        self.played.tokens[who] = self.tokens(who)
        del self._held[who]
        self.runner.remove_request(who)

    def clear(self, _: str) -> None:
        """Clear the scheduler's caches, and remove the requests only then."""
        self.note_pool()
        if self._pool is not None:
            self._pool.clear()
        for who in list(self._held):
            self.drop(who)

    def chain(self, batch: Sequence[str], steps: int) -> None:
        """Decode `steps` tokens of each request, each built before the previous one is read."""
        self.decode(batch, steps, chained=True)

    def decode(self, batch: Sequence[str], steps: int = 1, *, chained: bool = False) -> None:
        """Decode `steps` tokens of each request."""
        batch = list(batch)
        for who in batch:
            if self._pool is not None:
                self._pool.allocate(who, self._held[who], steps)
            self._held[who] += steps
        if not chained:
            for _ in range(steps):
                self.runner.decode_batch(batch)
            return
        last = self.runner.decode_batch_start(batch)
        mx.async_eval(last.lazy_tokens)
        for _ in range(steps - 1):
            following = self.runner.decode_batch_start_chained(last)
            mx.async_eval(following.lazy_tokens)
            self.runner.decode_batch_finalize(last)
            last = following
        self.runner.decode_batch_finalize(last)

    def bytes_of_pool(self) -> int:
        """Size of the pool's buffers, evaluated, so in memory as after any prefix hit."""
        pool = self._stock_pool()
        buffers = [] if pool is None else pool.all_buffers()
        mx.eval(buffers)
        return sum(array.nbytes for array in buffers)

    def tokens(self, who: str) -> list[int]:
        """A running request's tokens, prompt included."""
        return list(self.runner._req_token_ids[who])

    def _words(self, seed: str, length: int) -> list[int]:
        chance = Random(seed)  # noqa: S311
        return [chance.randrange(self._model.config["vocab_size"]) for _ in range(length)]

    def hit(self, who: str, donor: str, prefix: int, further: int) -> None:
        """Prefill a prompt that begins with `prefix` tokens of a request that has left."""
        tokens, slots = self._donated[donor]
        new = self._words(f"{who}{further}", further)
        self._prefill(who, tokens[:prefix] + new, slots[:prefix])

    def _prefill(self, who: str, prompt: list[int], prefix_slots: list[int]) -> None:
        self._held[who] = len(prompt)
        if self._pool is not None and hasattr(self.runner, "flush_all_decode_kv"):
            self.runner.flush_all_decode_kv()  # as stock's worker does before a prefill
        row, new_slots = self._open(who, prompt, prefix_slots)
        new = prompt[len(prefix_slots) :]
        self.runner.prefill(who, new, prompt, prefix_slots, new_slots, row)
        if self._is_sampling:
            sampling: Any = import_module(SAMPLING)
            self.runner._req_sampling[who] = sampling.MlxSamplingParams(
                temperature=0.9, top_k=20, top_p=0.9, min_p=0.0, seed=self._words(who, 1)[0]
            )

    def _open(self, who: str, prompt: list[int], prefix_slots: list[int]) -> tuple[int, list[int]]:
        """A request's row, and the slots of its prompt behind the prefix; none without a pool."""
        if self._pool is None:
            return 0, []
        start, end = len(prefix_slots), len(prompt)
        row = self._pool.open(who, prefix_slots)
        return row, self._pool.allocate(who, start, end - start)

    def extend(self, who: str, tokens: int) -> None:
        """Prefill `tokens` further tokens of a request's prompt."""
        length = self._held[who]
        new = self._words(f"{who}+{length}", tokens)
        self._held[who] += tokens
        slots = [] if self._pool is None else self._pool.allocate(who, length, tokens)
        self.runner.extend(who, new, slots)

    def note_pool(self) -> None:
        """Note the KV that each request left in the pool."""
        for who, (_, slots) in self._donated.items():
            self.played.pool[who] = self._pool_digest(slots)
        self._donated.clear()

    def _stock_pool(self) -> Any:
        pools = (getattr(self.runner, name, None) for name in ("_attention_kv_pool", "_kv_pool"))
        return next(filter(None, pools), None)

    def _pool_digest(self, slots: list[int]) -> str:
        pool = self._stock_pool()
        if pool is None:  # models with a sliding window have none
            return ""
        keys, values = pool.get_kv_all_layers(mx.array(slots, dtype=mx.int32))
        return digest(keys) + digest(values)


class _RequestPool:
    """The part of the scheduler's ``ReqToTokenPool`` that the runner reads: slots per row."""

    def __init__(self) -> None:
        # From the first on, as stock does, so that a growing pool is tested; but each block in
        # descending order, as a slot's number is no token's position. Then it starts over.
        blocks = (range(first, first + _BLOCK) for first in range(1, SLOTS + 1, _BLOCK))
        self._free = cycle([slot for block in blocks for slot in reversed(block)])
        self._rows: dict[str, int] = {}
        self.req_to_token = _Table()

    def clear(self) -> None:
        """Free all rows; they stay readable, as in a pool whose rows nobody has taken again."""

    def open(self, who: str, prefix_slots: list[int]) -> int:
        """Add a row for a request that begins with these slots."""
        self._rows[who] = row = len(self.req_to_token.rows)
        self.req_to_token.rows.append(list(prefix_slots))
        return row

    def allocate(self, who: str, start: int, tokens: int) -> list[int]:
        """Allocate slots for tokens from `start` on, and return them."""
        slots = [next(self._free) for _ in range(tokens)]
        self.req_to_token.rows[self._rows[who]][start:] = slots
        return slots

    def slots(self, who: str, start: int, end: int) -> list[int]:
        """The slots of a request's tokens."""
        return self.req_to_token.rows[self._rows[who]][start:end]


class _Table:
    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def __getitem__(self, index: tuple[int, slice]) -> Any:
        torch: Any = import_module("torch")
        return torch.tensor(self.rows[index[0]][index[1]])


def digest(array: mx.array) -> str:
    """Sha256 of an array's dtype, shape and bytes."""
    mx.eval(array)
    words = array.view({1: mx.uint8, 2: mx.uint16, 4: mx.uint32}[array.dtype.size])
    text = f"{array.dtype} {array.shape}".encode()
    return hashlib.sha256(text + bytes(memoryview(words))).hexdigest()
