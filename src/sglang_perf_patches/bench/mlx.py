"""``bench mlx``: compares stock's and the patched MLX runner on this machine: prefill and decode.

The runner is the installed sglang's own, without the scheduler; the model has random weights.
Stock and patched each have a runner over the same weights, with the radix cache on, as in sglang's
default. Both run the same requests in alternating turns. First the benchmark compares the logits
of both bit by bit.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from itertools import zip_longest
from typing import Any

from ..judge import source
from ..proof import Different, Missing
from ..sets.mlx import device
from .mlx_models import MODELS
from .mlx_sides import COMPARED_STEPS, SET, SHORT, Batch, Prefills, Side, Switch
from .report import Cell, Counted, Table
from .timing import progress, ratio, turns

DECODE = ("mlx.kv-arena", "mlx.merged-cache")
"""The patches of the decode step; the one that applies decides whether steps can be chained."""

CHANGED_BY = frozenset(
    {*DECODE, "mlx.decode-context", "mlx.last-row", "mlx.pool-write", "mlx.first-buffer"}
)

_OF_STEPS = frozenset({*DECODE, "mlx.decode-context"})
_OF_PROMPTS = frozenset({"mlx.last-row"})
"""What can change nothing but a decode step, and nothing but a prefill."""

_REPEATS = 3
"""How often each side runs again where logits are different."""


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


def tables(args: argparse.Namespace) -> Iterator[Table]:
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
    name = "small" if args.quick else args.model or ("0.6b" if on_gpu else "small")
    dtype = args.dtype or ("bfloat16" if on_gpu else "float32")
    rounds = args.rounds or (3 if args.quick else 7)
    steps = args.steps or (2 if args.quick else 8)
    prompts = args.prefill or ([96] if args.quick else [256, 2048])
    different: list[str] = []
    notes = f"Device: {_device(mx)}."
    switch = Switch(args.patches)
    sizes = dict(MODELS[name])
    kind, quantized = sizes.pop("kind", "qwen3"), sizes.pop("quantized", False)
    with (
        models.model(kind, dtype, quantized=quantized, **sizes) as model,
        closing(switch),
    ):
        what = f"on sglang {version}, {name} model in {dtype}"
        named = frozenset(args.named or args.patches.split(","))
        if any(prompts) and not named <= _OF_STEPS:
            yield _prefill_table(model, switch, prompts, rounds, what, notes)
        has_steps = not named <= _OF_PROMPTS
        for requests, batches in _batches(
            args, on_gpu, can_chain=patch != "mlx.merged-cache", has_any=has_steps
        ):
            rows: list[tuple[Cell, ...]] = []
            for batch in progress(batches, f"bench mlx, {requests} requests"):
                row, equal = _row(model, switch, batch, rounds, steps)
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
                    f"Logits of each prefill and of {COMPARED_STEPS} steps, compared bit by bit. "
                    f"Where they are different, each side runs up to {_REPEATS} times more, and "
                    "the tokens after them are compared.",
                ),
                _megabytes(
                    f"MB kept by {requests} requests",
                    "radix cache {}, context {}, {}, {}",
                    rows,
                    11,
                ),
            )
    if different:
        raise Different(f"other logits than stock's with {different[0]}")


def _prefill_table(
    model: Any, switch: Switch, prompts: list[int], rounds: int, what: str, notes: str
) -> Table:
    """Time and memory of one prompt's prefill, with the radix cache on."""
    rows: list[tuple[Cell, ...]] = []
    for tokens in progress(prompts, "bench mlx, prefill"):
        stock, patched = (Prefills(model, tokens, live) for live in (switch.stock, switch.live))
        for is_patched in turns(rounds + 1):
            (patched if is_patched else stock).take_turn()
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
        _megabytes("MB at a prefill's peak", "prompt {}", rows, 4),
    )


def _megabytes(what: str, name: str, rows: list[tuple[Any, ...]], stock: int) -> Counted:
    """Memory for the verdict, in whole megabytes: the columns `stock` and the one after it.

    Args:
        what: of what.
        name: of a case, with places for a row's first cells.
        rows: of the table.
        stock: index of the column.
    """
    pairs = ((name.format(*row), round(row[stock]), round(row[stock + 1])) for row in rows)
    return Counted(what, tuple(pairs), fewer_is_better=True)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _decode_patch() -> tuple[str, str]:
    """This sglang's version, and its patch of the decode step, else the first that applies."""
    import sglang_perf_patches

    verdicts = {
        verdict.patch.id: verdict
        for verdict in sglang_perf_patches.verdicts(source.find_installed())
    }
    of_set = [id for id in verdicts if id.startswith("mlx.")]
    for id in (*DECODE, *of_set):
        if verdicts[id].word == "applies":
            return id, source.Tree(source.find_installed()).version
    raise Missing("; ".join(f"{id} is {verdicts[id].word}: {verdicts[id].reason}" for id in of_set))


def _batches(
    args: argparse.Namespace, on_gpu: bool, *, can_chain: bool, has_any: bool
) -> Iterator[tuple[int, list[Batch]]]:
    """The number of requests and the batches of each table; none if no patch changes a step."""
    if not has_any:
        return
    if args.quick:
        sizes, contexts = args.batch or [4], args.context or [96]
    else:
        sizes = args.batch or ([2, 4, 8, 16] if on_gpu else [4, 16])
        contexts = args.context or ([256, 1024, 4000] if on_gpu else [256])
    for requests in sizes:
        yield (
            requests,
            [
                Batch(requests, context, kind, taken, radix == "on" and can_chain)
                for radix in args.radix.split(",")
                for context in contexts
                for kind in args.lengths.split(",")
                for taken in args.taken.split(",")
                if can_chain or taken != "chained"
            ],
        )


def _row(
    model: Any, switch: Switch, batch: Batch, rounds: int, steps: int
) -> tuple[tuple[Cell, ...], bool]:
    """A row of the table; whether all logits equal stock's, as far as stock repeats its own."""
    stock = Side(model, batch, switch.stock)
    patched = Side(model, batch, switch.live)
    for is_patched in turns(rounds + 1):
        (patched if is_patched else stock).take_turn(steps)
    word, equal = judge_logits(
        stock.logits,
        patched.logits,
        lambda: Side(model, batch, switch.stock).logits,
        lambda: Side(model, batch, switch.live).logits,
    )
    if not equal:
        word += f", tokens {'equal' if stock.tokens == patched.tokens else 'too'}"
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
        word,
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


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _device(mx: Any) -> str:
    """A description of the device, with the setting that selects its attention kernels."""
    info = mx.device_info()
    name = str(info.get("device_name", info.get("architecture", "")) or "")
    cudnn = "on" if device.attends_by_cudnn(mx) else "off"
    attention = f", cuDNN attention {cudnn}" if device.has_cuda(mx) else ""
    return f"{mx.default_device()} {name}".strip() + attention
