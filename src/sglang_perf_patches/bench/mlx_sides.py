"""Stock and patched sglang on MLX in one process: switched by turns, each with its own runner."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..judge import source
from ..live import wrappers as objects
from ..proof import Missing
from ..seen import keeper

SET = "mlx"
"""The set, which stands for all its patches that are on by default."""

SHORT = 100
"""Length of the short prompts beside a long one, in tokens."""

COMPARED_STEPS = 4

_WARM_UP = 1


@dataclass(frozen=True)
class Batch:
    """One row of a table: the requests, and how their steps follow each other.

    Attributes:
        requests: number of requests.
        context: length of the longest prompt, in tokens.
        kind: ``equal``: all prompts have this length; ``skewed``: the lengths decrease evenly to a
            sixteenth of it; ``far``: the others have `SHORT` tokens.
        taken: how steps follow each other. ``read``: each is read before the next is built;
            ``chained``: each is built before the previous one is read, as in the overlap loop;
            ``changing``: before each, one request leaves and another joins, with its prefill
            untimed, and the changes continue from turn to turn.
        radix: whether the radix cache is on.
    """

    requests: int
    context: int
    kind: str
    taken: str
    radix: bool = True

    @property
    def lengths(self) -> list[int]:
        """Each request's prompt length, in tokens."""
        if self.kind == "equal" or self.requests == 1:
            return [self.context] * self.requests
        if self.kind == "far":
            return [self.context] + [min(SHORT, self.context)] * (self.requests - 1)
        shortest = max(1, self.context // 16)
        gaps = self.requests - 1
        return [
            shortest + (self.context - shortest) * number // gaps for number in range(self.requests)
        ]


class Switch:
    """Switches the patched code on and off, always the same objects.

    A second activation would not work: it would not recognize caches in an arena of the first one,
    and stock would serve their batch.

    Attributes:
        names: the patches that went live.
    """

    def __init__(self, selection: str = SET) -> None:
        """`selection` names patches, with commas between, or the set."""
        import sglang_perf_patches

        from ..proof.mlx.models import RUNNER

        import_module(RUNNER)
        named = selection.split(",")
        verdicts = sglang_perf_patches.verdicts(source.find_installed())
        applying = [
            (one.patch.id, one.variant)
            for one in verdicts
            if one.variant is not None
            and (one.patch.id in named or (one.patch.set in named and one.patch.is_default))
        ]
        targets = {target: None for _, variant in applying for target in variant.targets}
        owners = [objects.owner_of(reference) for reference in targets]
        stock = [self._held(*owner) for owner in owners]
        report = sglang_perf_patches.activate(selection)
        keeper.drop()  # it checks the live code, and would report a turn of stock's as a conflict
        self.names = [id for id, _ in applying if report.of(id).state == "live"]
        if not self.names:
            raise Missing(f"no patch of {selection} went live")
        self._stock = list(zip(owners, stock, strict=True))
        self._live = [(owner, self._held(*owner)) for owner in owners]

    @contextmanager
    def live(self) -> Iterator[None]:
        """Run the patched code inside the context."""
        self._put(self._live)
        try:
            yield
        finally:
            self._put(self._stock)

    @contextmanager
    def stock(self) -> Iterator[None]:
        """Run stock's code, as outside any context."""
        self._put(self._stock)
        yield

    def close(self) -> None:
        """Put stock's own objects back."""
        import sglang_perf_patches

        self._put(self._live)
        gc.collect()  # what holds a request's buffers would keep a patch from coming off
        sglang_perf_patches.deactivate()

    @staticmethod
    def _held(owner: Any, name: str) -> tuple[Any, Any]:
        """An attribute and its code, if a function: a patch replaces a module function's code."""
        value = objects.raw(owner, name)
        return value, getattr(value, "__code__", None)

    @staticmethod
    def _put(held: list[tuple[tuple[Any, str], tuple[Any, Any]]]) -> None:
        for (owner, name), (value, code) in held:
            setattr(owner, name, value)
            if code is not None:
                value.__code__ = code


class Side:
    """Stock or patched: a runner with the requests of one batch."""

    def __init__(
        self, model: Any, batch: Batch, live: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        import mlx.core as mx

        from ..proof.mlx import rig

        self._live, self._batch = live, batch
        self._names = [f"r{number}" for number in range(batch.requests)]
        self.times: list[float] = []
        self.builds: list[float] = []
        self.logits: list[tuple[str, str]] = []
        self.tokens: list[list[int]] = []
        self._building = 0.0
        self._changes = 0
        with live():
            slots = 2 * sum(batch.lengths) + 256 * batch.requests
            self._player = rig.Player(model, radix=batch.radix, slots=slots)
            self._player.evaluate_pool()
            gc.collect()  # frees the previous batch
            mx.clear_cache()
            before = mx.get_active_memory()
            mx.reset_peak_memory()
            for name, length in zip(self._names, batch.lengths, strict=True):
                self._player.join(name, length)
                self._keep_digests(f"the prefill of {name}")
            mx.synchronize()
            for number in range(COMPARED_STEPS):
                self._player.keeps = bool(number)
                began = time.perf_counter()
                self._player.decode(self._names)
                mx.synchronize()
                if not number:
                    self.first_step = time.perf_counter() - began
                    self.kept = mx.get_active_memory() - before
                self._keep_digests(f"step {number + 1}")
        self.peak = mx.get_peak_memory() - before
        self.tokens = [self._player.tokens(name) for name in self._names]
        self._time_building()

    def take_turn(self, steps: int) -> None:
        """Run and time steps, after untimed warm-up steps."""
        with self._live():
            self._take(_WARM_UP)
            self._building = 0.0
            self.times.append(self._take(steps) / steps)
        self.builds.append(self._building / steps)
        self._player.pending.clear()

    def _take(self, steps: int) -> float:
        """Seconds for the steps of the batch, which may change before each step."""
        if self._batch.taken == "changing":
            return sum(self._change_and_decode() for _ in range(steps))
        return self._decode(steps)

    def _decode(self, steps: int) -> float:
        """Seconds for steps of an unchanged batch."""
        import mlx.core as mx

        mx.synchronize()
        began = time.perf_counter()
        self._player.decode(self._names, steps, chained=self._batch.taken == "chained")
        mx.synchronize()
        return time.perf_counter() - began

    def _change_and_decode(self) -> float:
        """Seconds for a step after another request has replaced the oldest one."""
        self._player.leave(self._names.pop(0))
        self._changes += 1
        lengths = self._batch.lengths
        self._names.append(f"c{self._changes}")
        self._player.join(self._names[-1], lengths[self._changes % len(lengths)])
        return self._decode(1)

    def _keep_digests(self, forward: str) -> None:
        from ..proof.mlx import rig

        self.logits += [(forward, rig.digest(logits)) for logits in self._player.pending]
        self._player.pending.clear()

    def _time_building(self) -> None:
        """Add up the time to build a step's graph, where the runner has functions for that."""
        runner = self._player.runner
        for name in ("decode_batch_start", "decode_batch_start_chained"):
            if hasattr(runner, name):
                setattr(runner, name, self._timed(getattr(runner, name)))

    def _timed(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            built = build(*args, **kwargs)
            self._building += time.perf_counter() - began
            return built

        return timed


class Prefills:
    """Stock or patched: a runner that prefills prompts one by one."""

    def __init__(
        self, model: Any, tokens: int, live: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        import mlx.core as mx

        from ..proof.mlx import rig

        self._live, self._tokens, self._count = live, tokens, 0
        self.times: list[float] = []
        with live():
            self._player = rig.Player(model, radix=True, slots=8 * tokens)
            self._player.evaluate_pool()
            self._launch_like_the_worker()
            for name in ("first", "second"):  # mlx.last-row may check the first of a size
                self._player.join(name, tokens)
                self._player.leave(name)
            self.digests = [rig.digest(logits) for logits in self._player.pending]
            self._player.pending.clear()
            self._player.keeps = False
            gc.collect()
            mx.clear_cache()
            before = mx.get_active_memory()
            mx.reset_peak_memory()
            self._player.join("measured", tokens)
            self.peak = mx.get_peak_memory() - before
            self._player.leave("measured")

    def take_turn(self) -> None:
        """Prefill a new prompt."""
        import mlx.core as mx

        self._count += 1
        with self._live():
            self._player.join(f"p{self._count}", self._tokens)
            self._player.leave(f"p{self._count}")
            mx.synchronize()

    def _launch_like_the_worker(self) -> None:
        """Build, launch and read as stock's worker does in its overlap loop; and time that.

        Releases that evaluate a prefill at once are timed as they are.
        """
        import mlx.core as mx

        runner = self._player.runner
        prefill, start = runner.prefill, getattr(runner, "prefill_start", None)
        arrays_of = getattr(runner, "cache_state_arrays", _states)

        def timed(*args: Any) -> int:
            mx.synchronize()
            began = time.perf_counter()
            if start is None:
                token: int = prefill(*args)
            else:
                pending = start(*args)
                mx.async_eval(pending.lazy_token, arrays_of([pending.cache]))
                token = runner.prefill_finalize(pending)
            self.times.append(time.perf_counter() - began)  # it has waited for the token
            return token

        runner.prefill = timed


def _states(caches: list[list[Any]]) -> list[Any]:
    """What a step evaluates of requests' caches, where the runner has no function for that."""
    return [cache.state for of_request in caches for cache in of_request]
