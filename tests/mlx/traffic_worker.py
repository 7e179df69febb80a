"""MLX's real worker with random traffic, and what it holds in memory."""

import gc
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import mlx.core as mx

from sglang_perf_patches.sets.mlx.kv_arena.arena import Layer
from sglang_perf_patches.sets.mlx.next_turn.body import _End, _Turn
from sglang_perf_patches.verify.mlx.batches import _BatchPlayer
from sglang_perf_patches.verify.mlx.rig import SLOTS

EVENTS = 60
MOST = 6


@dataclass
class Request:
    """A request, `asked` as the worker knows it; the KV of `held` tokens is in its caches."""

    prompt: list[int]
    held: int = 0
    retractions: int = 0
    asked: Any = None


@dataclass
class Outcome:
    """What came of some traffic."""

    tokens: list[list[int]] = field(default_factory=list)  # each request's, when it left
    # Sha256 of the KV of each prefix in the radix cache, at each flush and at the end.
    pool: list[str] = field(default_factory=list)
    # Bytes in memory and bytes counted, at the same moments and in between.
    held: list[tuple[int, int]] = field(default_factory=list)


class Worker(_BatchPlayer):
    """A worker with random traffic."""

    def __init__(self, made: Any, seed: int) -> None:
        gc.collect()
        self._before = mx.get_active_memory()
        super().__init__(made, radix=True)
        self._worker._mlx_pool_initialized = True
        self._chance = Random(seed)
        self._numbers = iter(range(1 << 20))
        self._running: dict[str, Request] = {}
        self._chunked: dict[str, Request] = {}
        self._retracted: dict[str, Request] = {}
        self._ended: list[tuple[list[int], int]] = []
        # What the radix cache has: tokens, and their slots.
        self._tree: list[tuple[list[int], list[int]]] = []
        self._order = [next(self._pool._free) for _ in range(SLOTS)]
        self._free: deque[int] = deque(self._order)
        self._pool._free = self._taken()
        self._outcome = Outcome()

    def run(self) -> Outcome:
        for _ in range(EVENTS):
            self._event()
            self.pending.clear()
            self._reclaim()
        self._flush()
        return self._outcome

    def _event(self) -> None:
        kinds = (*("launch",) * 4, *("decode",) * 6, *("end",) * 4)
        kind = self._chance.choice(
            (*kinds, "drop", "retract", "evict", "flush", "memory", "memory")
        )
        running = sorted(self._running)
        if kind == "launch" and len(running) < MOST:
            self._launch()
        elif kind == "decode" and running:
            self._decode(self._chance.choice((1, 2, 3, 5, 5, 20)))
        elif kind == "end" and running:
            count = self._chance.choice((1, 1, 1, 2, len(running)))
            for name in self._chance.sample(running, min(count, len(running))):
                self._end(name)
        elif kind == "drop" and running:
            name = self._chance.choice(running)
            self._outcome.tokens.append(self.tokens(name))
            del self._running[name]
        elif kind == "retract" and running and hasattr(self._worker, "_drop_state_if_retracted"):
            name = self._chance.choice(running)
            request = self._running.pop(name)
            request.prompt, request.held = self.tokens(name), 0
            request.retractions += 1
            self._retracted[name] = request
        elif kind == "evict" and self._tree:
            tokens, slots = self._tree.pop(self._chance.randrange(len(self._tree)))
            kept = self._chance.choice((0, len(tokens) // 2))
            if kept:
                self._tree.append((tokens[:kept], slots[:kept]))
        elif kind == "flush" and self._chance.random() < 0.3:
            self._flush()
        elif kind == "memory":
            self._note_memory()

    def _launch(self) -> None:
        """A batch: the next chunk of a prompt, retracted requests, and new prompts."""
        batch = [(name, request) for name, request in self._chunked.items()]
        batch += [(name, request) for name, request in self._retracted.items()]
        self._chunked, self._retracted = {}, {}
        like = self._chance.choice((4, 30, 90))
        for _ in range(self._chance.randint(1, 4)):
            batch.append((f"r{next(self._numbers)}", Request(self._prompt(like))))
        requests, tokens, slots, lengths = [], [], [], []
        for place, (name, request) in enumerate(batch):
            start, end = self._open_request(name, request, may_cut=place == len(batch) - 1)
            requests.append(request.asked)
            tokens += request.prompt[start:end]
            slots += self._pool.slots(name, start, end)
            lengths.append(end - start)
            request.held = end
        forward = _batch("extend", requests)
        forward.input_ids = self._torch.tensor(tokens, dtype=self._torch.int64)
        forward.out_cache_loc = self._torch.tensor(slots, dtype=self._torch.int64)
        forward.extend_lens = lengths
        launch = self._worker.async_forward_batch_generation_mlx(forward)
        self._worker.finalize_mlx_result(launch, requests)
        for name, request in batch:
            done = request.held == len(request.prompt)
            (self._running if done else self._chunked)[name] = request
            self._insert(name, request.prompt[: request.held])

    def _prompt(self, like: int) -> list[int]:
        """A prompt: new, the next turn of a conversation, or one that an earlier one shares."""
        chance = self._chance
        new = self._words(f"{next(self._numbers)}", max(1, round(like * chance.uniform(0.7, 1.2))))
        kind = chance.choice(("new", "system", "one", "turn", "turn", "turn", "far"))
        if kind == "system":
            return self._words("system", 70) + new
        if kind == "one":
            return self._words("system", 1) + new
        if kind == "far":
            return self._words("far", 560) + new
        if kind == "turn" and self._ended:
            tokens, prompt = chance.choice(self._ended[-6:])
            # A template may leave the reply out; somebody may ask the same again.
            return tokens[: chance.choice((len(tokens), len(tokens), prompt, prompt - 1))] + new
        return new

    def _open_request(self, name: str, request: Request, *, may_cut: bool) -> tuple[int, int]:
        start, end = request.held, len(request.prompt)
        if may_cut and end - start > 20 and self._chance.random() < 0.5:
            end -= self._chance.choice((1, 9, (end - start) // 2))
        if start:
            self._pool.allocate(name, start, end - start)
        else:
            slots = self._match(request.prompt[:-1])[: end - 1]
            start = len(slots)
            row, _ = self._open(name, request.prompt[:end], slots)
            request.asked = self._request(name, request.prompt, slots, row)
            request.asked.retraction_count = request.retractions
        asked, prompt = request.asked, request.prompt
        asked.extend_end = end
        asked.extend_range = SimpleNamespace(start=start, end=end)
        asked.get_fill_ids = lambda: prompt[:end]
        return start, end

    def _decode(self, steps: int) -> None:
        """Decode all running requests, each step but the first before the last is read."""
        names = list(self._running)
        requests = [self._running[name].asked for name in names]
        for name in names:
            self._pool.allocate(name, self._running[name].held, steps)
            self._running[name].held += steps
        worker = self._worker
        launch = worker.async_forward_batch_generation_mlx(_batch("decode", requests))
        for _ in range(steps - 1):
            following = worker.async_chained_decode_mlx(launch.decode)
            worker.finalize_mlx_result(launch, requests)
            launch = following
        worker.finalize_mlx_result(launch, requests)

    def _end(self, name: str) -> None:
        """A request ends, maybe a step before the one that was built last."""
        request = self._running.pop(name)
        owned = request.held
        if owned > len(request.prompt) and hasattr(self.runner, "release_request_row"):
            owned -= self._chance.randint(0, 1)
        request.asked.owned_kv_len = lambda: owned
        tokens = self.tokens(name)[:owned]
        self._worker.prepare_for_kv_cache_release(request.asked)
        self._outcome.tokens.append(tokens)
        self._ended.append((tokens, len(request.prompt)))
        self._insert(name, tokens)

    def _flush(self) -> None:
        for name in list(self._running):
            self._end(name)
        self._chunked.clear()
        self._retracted.clear()
        if hasattr(self.runner, "flush_all_decode_kv"):
            self.runner.flush_all_decode_kv()
        self._note_memory()
        self._outcome.pool += [self._pool_digest(slots) for _, slots in self._tree]
        self._tree.clear()
        self._pool.clear()

    def _match(self, tokens: Sequence[int]) -> list[int]:
        """The slots of the longest prefix in the radix cache."""
        best: list[int] = []
        for held, slots in self._tree:
            most = min(len(held), len(tokens))
            common = next((at for at in range(most) if held[at] != tokens[at]), most)
            if common > len(best):
                best = slots[:common]
        return best

    def _insert(self, name: str, tokens: list[int]) -> None:
        """Put a request's tokens into the radix cache; what it has already keeps its slots."""
        slots = self._match(tokens)
        row = self._pool.req_to_token.rows[self._pool._rows[name]]
        row[: len(slots)] = slots
        self._tree = [each for each in self._tree if tokens[: len(each[0])] != each[0]]
        self._tree.append((list(tokens), list(row[: len(tokens)])))

    def _taken(self) -> Iterator[int]:
        while True:
            yield self._free.popleft()

    def _reclaim(self) -> None:
        """Slots that neither the radix cache nor a request has are free."""
        used = {slot for _, slots in self._tree for slot in slots}
        for name in (*self._running, *self._chunked):
            used.update(self._pool.req_to_token.rows[self._pool._rows[name]])
        self._free = deque(slot for slot in self._order if slot not in used)

    def _note_memory(self) -> None:
        self.bytes_of_pool()  # queued writes hold requests' buffers, in stock too
        gc.collect()
        active = mx.get_active_memory() - self._before
        self._outcome.held.append((active, _counted(self)))


def _batch(mode: str, requests: Any) -> Any:
    return SimpleNamespace(
        forward_mode=SimpleNamespace(
            is_idle=lambda: False,
            is_decode=lambda: mode == "decode",
            is_extend=lambda: mode == "extend",
        ),
        reqs=requests,
        decoding_reqs=None,
        sampling_info=None,
        return_logprob=False,
        has_grammar=False,
    )


def _counted(worker: Any) -> int:
    """Bytes of the pool, of all requests' caches, of those kept for reuse, and of kept turns."""
    arrays: dict[int, Any] = {}
    runner = worker.runner
    for caches in (*runner._req_caches.values(), *runner._cache_pool):
        for cache in caches:
            fields = vars(type(cache).__mro__[-2])  # stock's, in which an arena's row has its place
            layer = fields["keys"].__get__(cache)
            for name in ("keys", "values"):
                array = getattr(layer if type(layer) is Layer else cache, name)
                if array is not None:
                    arrays[id(array)] = array
    kept = [each for each in gc.get_objects() if type(each) in (_Turn, _End)]
    of_turns = {id(each.end) for each in kept if type(each) is _Turn}
    turns = sum(each.size for each in kept if id(each) not in of_turns)
    return worker.bytes_of_pool() + sum(each.nbytes for each in arrays.values()) + turns
