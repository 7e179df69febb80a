"""``bench mlx``: compares stock's and the patched MLX runner on this machine: prefill and decode.

The runner is the installed sglang's own, without the scheduler; the model has random weights.
Stock and patched each have a runner over the same weights, with the radix cache on, as in sglang's
default. Both run the same requests in alternating turns. First the benchmark compares the logits
of both bit by bit.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import zip_longest
from typing import Any

from ..judge import source
from ..live import identity as objects
from ..proof import Different, Missing
from ..seen import keeper
from ..sets.mlx import device
from .report import Cell, Table
from .timing import progress, ratio

DECODE = ("mlx.kv-arena", "mlx.merged-cache")
"""The patches of the decode step; the one that applies decides whether steps can be chained."""

SET = "mlx"
"""The set, which stands for all its patches that are on by default."""

MODELS: dict[str, dict[str, Any]] = {
    "0.6b": {
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
    },
    "8b-4bit": {
        "quantized": True,
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_theta": 1_000_000.0,
    },
    "quarter": {
        "vocab_size": 9_496,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
    },
    "small": {
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
    "hybrid": {"kind": "qwen3_next", "num_hidden_layers": 8, "full_attention_interval": 4},
    "window": {
        "kind": "gpt_oss",
        "num_hidden_layers": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 4,
        "sliding_window": 128,
    },
    "qwen3-next": {
        "kind": "qwen3_next",
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "num_hidden_layers": 12,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10_000_000.0,
        "linear_num_value_heads": 32,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "num_experts": 32,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    "gpt-oss": {
        "kind": "gpt_oss",
        "vocab_size": 201_088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 12,
        "layer_types": ["sliding_attention", "full_attention"] * 6,
        "sliding_window": 128,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 8,
        "rope_theta": 150_000.0,
    },
}
"""The models, in order.

- Qwen3-0.6B, and Qwen3-8B in 4 bits.
- Qwen3 with the proportions of body and head of the 0.6B model, and Qwen3 for a CPU.
- A small model with Qwen3-Next's layers, three of four recurrent.
- A small model with the layers of gpt-oss, every other one with a sliding window.
- Qwen3-Next-80B-A3B with 12 of its 48 layers and 32 of its 512 experts.
- gpt-oss-20b with 12 of its 24 layers and 8 of its 32 experts.
"""

SHORT = 100
"""Length of the short prompts beside a long one, in tokens."""

_COMPARED_STEPS = 4
_REPEATS = 3
"""How often each side runs again where logits are different."""

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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for sizes; their defaults depend on the device."""
    parser.add_argument("--model", choices=MODELS, help="0.6b on a GPU, small on a CPU")
    parser.add_argument("--dtype", help="bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--batch", type=_numbers, metavar="N,...", help="requests in a step")
    parser.add_argument("--context", type=_numbers, metavar="N,...", help="longest prompt")
    parser.add_argument("--lengths", default="equal,skewed", metavar="equal,skewed,far")
    parser.add_argument("--radix", default="on", metavar="on,off", help="the radix cache")
    parser.add_argument("--prefill", type=_numbers, metavar="N,...", help="prompts, 0 for none")
    parser.add_argument("--taken", default="read,chained", metavar="read,chained,changing")
    parser.add_argument(
        "--patches", default=SET, metavar="ID,...", help="the patches that are measured"
    )
    parser.add_argument("--rounds", type=int, help="turns of each side")
    parser.add_argument("--steps", type=int, help="steps in a turn")


def tables(given: argparse.Namespace) -> Iterator[Table]:
    """One table of prefills, then one of decode steps for each number of requests.

    Raises:
        Different: in some batch the logits differ from stock's; raised after all tables.
        Missing: mlx is not installed, or no patch applies to this sglang.
    """
    try:
        import mlx.core as mx

        import_module("mlx_lm")
    except ImportError as error:
        raise Missing(f"{error.name} is not installed") from error
    from ..proof.mlx import standalone

    standalone.lend()
    from ..proof.mlx import models

    patch, version = _decode_patch()
    on_gpu = mx.default_device() != mx.Device(mx.cpu)
    name = "small" if given.quick else given.model or ("0.6b" if on_gpu else "small")
    dtype = given.dtype or ("bfloat16" if on_gpu else "float32")
    rounds = given.rounds or (3 if given.quick else 7)
    steps = given.steps or (2 if given.quick else 8)
    prompts = given.prefill or ([96] if given.quick else [256, 2048])
    different: list[str] = []
    notes = f"Device: {_device(mx)}."
    switch = Switch(given.patches)
    sizes = dict(MODELS[name])
    kind, quantized = sizes.pop("kind", "qwen3"), sizes.pop("quantized", False)
    with (
        models.model(kind, dtype, quantized=quantized, **sizes) as made,
        closing(switch),
    ):
        what = f"on sglang {version}, {name} model in {dtype}"
        if any(prompts):
            yield _prefill_table(made, switch, prompts, rounds, what, notes)
        for requests, batches in _batches(given, on_gpu, can_chain=patch != "mlx.merged-cache"):
            rows: list[tuple[Cell, ...]] = []
            for batch in progress(batches, f"bench mlx, {requests} requests"):
                row, equal = _row(made, switch, batch, rounds, steps)
                rows.append(row)
                if not equal:
                    different.append(
                        f"{requests} requests of {batch.context} tokens, "
                        f"{batch.kind}, {batch.taken}"
                    )
            yield Table(
                "mlx",
                f"a decode step of {requests} requests {what}",
                (
                    *("radix cache", "context", "lengths", "steps", "time, patched : stock"),
                    *("stock, ms", "patched, ms", "graph, stock, ms", "graph, patched, ms"),
                    *("first step, stock, ms", "first step, patched, ms"),
                    *("kept, stock, MB", "kept, patched, MB"),
                    *("peak, stock, MB", "peak, patched, MB", "logits"),
                ),
                tuple(rows),
                (
                    f"{notes} Patches: {', '.join(switch.names)}.",
                    f"{rounds} turns of {steps} steps each; the median ratio with its quartiles. "
                    "Skewed lengths go down evenly to a sixteenth of the context, of far ones all "
                    f"but one are {SHORT}. A step is read before the next is built, or chained, as "
                    "the overlap loop does, or taken after one request left and another joined.",
                    "The first step is the one after the prefills. Memory is what the requests "
                    "hold after that step, and the peak of prefills and first steps, above the "
                    "weights and the pool.",
                    f"Logits of each prefill and of {_COMPARED_STEPS} steps, compared bit by bit. "
                    f"Where they are different, each side runs up to {_REPEATS} times more, and "
                    "the tokens after them are compared.",
                ),
            )
    if different:
        raise Different(f"other logits than stock's with {different[0]}")


def _prefill_table(
    made: Any, switch: Switch, prompts: list[int], rounds: int, what: str, notes: str
) -> Table:
    """Time and memory of one prompt's prefill, with the radix cache on."""
    rows: list[tuple[Cell, ...]] = []
    for tokens in progress(prompts, "bench mlx, prefill"):
        sides = [_Prefills(made, tokens, live) for live in (switch.stock, switch.live)]
        for number in range(rounds + 1):
            for side in sides[:: 1 if number % 2 else -1]:
                side.take_turn()
        stock, patched = sides
        time_ratio = ratio(stock.times[-rounds:], patched.times[-rounds:])
        rows.append(
            (
                tokens,
                time_ratio,
                round(1e3 * time_ratio.stock, 2),
                round(1e3 * time_ratio.patched, 2),
                round(stock.peak / 1e6, 1),
                round(patched.peak / 1e6, 1),
                "equal" if stock.digests == patched.digests else "different",
            )
        )
    return Table(
        "mlx",
        f"a prefill of one request {what}",
        (
            *("prompt", "time, patched : stock", "stock, ms", "patched, ms"),
            *("peak, stock, MB", "peak, patched, MB", "logits"),
        ),
        tuple(rows),
        (
            f"{notes} {rounds} turns of one prompt each; the median ratio with its quartiles. "
            "A prompt is built and launched, then its token is read, as in the overlap loop. The "
            "peak is above the weights and the pool.",
        ),
    )


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _decode_patch() -> tuple[str, str]:
    """This sglang's version, and its patch of the decode step, else the first that applies."""
    import sglang_perf_patches

    found = {
        verdict.patch.id: verdict
        for verdict in sglang_perf_patches.verdicts(source.find_installed())
    }
    of_set = [id for id in found if id.startswith("mlx.")]
    for id in (*DECODE, *of_set):
        if found[id].word == "applies":
            return id, source.Tree(source.find_installed()).version
    raise Missing("; ".join(f"{id} is {found[id].word}: {found[id].reason}" for id in of_set))


def _batches(
    given: argparse.Namespace, on_gpu: bool, *, can_chain: bool
) -> Iterator[tuple[int, list[Batch]]]:
    """The number of requests and the batches of each table."""
    if given.quick:
        sizes, contexts = given.batch or [4], given.context or [96]
    else:
        sizes = given.batch or ([2, 4, 8, 16] if on_gpu else [4, 16])
        contexts = given.context or ([256, 1024, 4000] if on_gpu else [256])
    for requests in sizes:
        yield (
            requests,
            [
                Batch(requests, context, kind, taken, radix == "on" and can_chain)
                for radix in given.radix.split(",")
                for context in contexts
                for kind in given.lengths.split(",")
                for taken in given.taken.split(",")
                if can_chain or taken != "chained"
            ],
        )


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
        chosen = [
            (found.patch.id, found.variant)
            for found in verdicts
            if found.variant is not None
            and (found.patch.id in named or (found.patch.set in named and found.patch.is_default))
        ]
        targets = {target: None for _, variant in chosen for target in variant.targets}
        owners = [objects.owner_of(reference) for reference in targets]
        stock = [self._held(*owner) for owner in owners]
        report = sglang_perf_patches.activate(selection)
        keeper.drop()  # it checks the live code, and would report a turn of stock's as a conflict
        self.names = [id for id, _ in chosen if report.of(id).state == "live"]
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


class _Side:
    """Stock or patched: a runner with the requests of one batch."""

    def __init__(
        self, made: Any, batch: Batch, live: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        import mlx.core as mx

        from ..proof.mlx import playing

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
            self._player = playing.Player(made, radix=batch.radix, slots=slots)
            self._player.evaluate_pool()
            gc.collect()  # frees the previous batch
            mx.clear_cache()
            before = mx.get_active_memory()
            mx.reset_peak_memory()
            for name, length in zip(self._names, batch.lengths, strict=True):
                self._player.join(name, length)
                self._keep_digests(f"the prefill of {name}")
            mx.synchronize()
            for number in range(_COMPARED_STEPS):
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
        from ..proof.mlx import playing

        self.logits += [(forward, playing.digest(logits)) for logits in self._player.pending]
        self._player.pending.clear()

    def _time_building(self) -> None:
        """Add up the time to build a step's graph, where the runner has functions for that."""
        runner = self._player.runner
        for name in ("decode_batch_start", "decode_batch_start_chained"):
            if hasattr(runner, name):
                setattr(runner, name, self._timed(getattr(runner, name)))

    def _timed(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            built = build(*arguments, **options)
            self._building += time.perf_counter() - began
            return built

        return timed


class _Prefills:
    """Stock or patched: a runner that prefills prompts one by one."""

    def __init__(
        self, made: Any, tokens: int, live: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        import mlx.core as mx

        from ..proof.mlx import playing

        self._live, self._tokens, self._count = live, tokens, 0
        self.times: list[float] = []
        with live():
            self._player = playing.Player(made, radix=True, slots=8 * tokens)
            self._player.evaluate_pool()
            self._launch_like_the_worker()
            for name in ("first", "second"):  # mlx.last-row may check the first of a size
                self._player.join(name, tokens)
                self._player.leave(name)
            self.digests = [playing.digest(logits) for logits in self._player.pending]
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

        def timed(*arguments: Any) -> int:
            mx.synchronize()
            began = time.perf_counter()
            if start is None:
                token: int = prefill(*arguments)
            else:
                pending = start(*arguments)
                mx.async_eval(pending.lazy_token, arrays_of([pending.cache]))
                token = runner.prefill_finalize(pending)
            self.times.append(time.perf_counter() - began)  # it has waited for the token
            return token

        runner.prefill = timed


def _row(
    made: Any, switch: Switch, batch: Batch, rounds: int, steps: int
) -> tuple[tuple[Cell, ...], bool]:
    """A row of the table; whether all logits equal stock's, as far as stock repeats its own."""
    stock = _Side(made, batch, switch.stock)
    patched = _Side(made, batch, switch.live)
    for number in range(rounds + 1):
        for side in (stock, patched) if number % 2 else (patched, stock):
            side.take_turn(steps)
    said, equal = judge_logits(
        stock.logits,
        patched.logits,
        lambda: _Side(made, batch, switch.stock).logits,
        lambda: _Side(made, batch, switch.live).logits,
    )
    if not equal:
        said += f", tokens {'equal' if stock.tokens == patched.tokens else 'too'}"
    time_ratio = ratio(stock.times[1:], patched.times[1:])
    can_build = any(stock.builds)
    row: tuple[Cell, ...] = (
        "on" if batch.radix else "off",
        batch.context,
        batch.kind,
        batch.taken,
        time_ratio,
        round(1e3 * time_ratio.stock, 3),
        round(1e3 * time_ratio.patched, 3),
        round(1e3 * _middle(stock.builds[1:]), 3) if can_build else None,
        round(1e3 * _middle(patched.builds[1:]), 3) if can_build else None,
        round(1e3 * stock.first_step, 2),
        round(1e3 * patched.first_step, 2),
        round(stock.kept / 1e6, 1),
        round(patched.kept / 1e6, 1),
        round(stock.peak / 1e6, 1),
        round(patched.peak / 1e6, 1),
        said,
    )
    return row, equal


Logits = list[tuple[str, str]]
"""The forwards of one side in order, each with the digest of its logits."""


def judge_logits(
    stock: Logits,
    patched: Logits,
    stock_again: Callable[[], Logits],
    patched_again: Callable[[], Logits],
) -> tuple[str, bool]:
    """What the table says; whether the logits are stock's, as far as stock repeats its own.

    Where they are different, stock runs again. Its own logits excuse a difference only if they
    differ in the same forward or before it. Otherwise the patched side runs again too, which shows
    whether it always differs.
    """
    first = _first_other(stock, patched)
    if first is None:
        return "equal", True
    for _ in range(_REPEATS):
        own = _first_other(stock, stock_again())
        if own is not None and own <= first:
            return "stock's own differ from run to run", True
    others = 1 + sum(_first_other(stock, patched_again()) is not None for _ in range(_REPEATS))
    return f"different in {others} of {1 + _REPEATS} runs from {stock[first][0]} on", False


def _first_other(one: Logits, other: Logits) -> int | None:
    """Index of the first forward with other logits; None if all are equal."""
    pairs = zip_longest(one, other)
    return next((index for index, (mine, its) in enumerate(pairs) if mine != its), None)


def _states(caches: list[list[Any]]) -> list[Any]:
    """What a step evaluates of requests' caches, where the runner has no function for that."""
    return [cache.state for of_request in caches for cache in of_request]


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _device(mx: Any) -> str:
    """A description of the device, with the setting that selects its attention kernels."""
    told = mx.device_info()
    name = str(told.get("device_name", told.get("architecture", "")) or "")
    cudnn = "on" if device.attends_by_cudnn(mx) else "off"
    attention = f", cuDNN attention {cudnn}" if device.has_cuda(mx) else ""
    return f"{mx.default_device()} {name}".strip() + attention
