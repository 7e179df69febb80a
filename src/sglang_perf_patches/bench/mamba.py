"""``bench mamba``: what a forward with tracked states waits for, and how long it takes.

No model runs. The backends, pools, layers and kernels are the installed sglang's own. On an NVIDIA
GPU the forwards have Qwen3-Next's dimensions, stock and patched take turns, and a trace counts the
syncs. Without one, the forwards are small, Triton's interpreter runs the kernels, and what would
wait for a GPU is counted on the CPU; no time is taken.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from ..proof import Different, Missing, lent
from ..proof.comparing import require_same, selected
from . import mamba_captured
from . import words as set_words
from .report import Cell, Counted, Table
from .timing import Ratio, call_time, in_turns, progress

_SET = "mamba"
_CHUNKS = "mamba.mamba2-chunk-indices"
CHANGED_BY = frozenset(
    {_CHUNKS, "mamba.zero-sync", "mamba.lightning-rows", "mamba.gdn-prefill-graph"}
)
_FORWARDS = 8
"""Forwards that a time is the median of."""
_BUSY_CYCLES = 2_000_000
"""About a millisecond of other work, behind which a forward is queued as on a busy server."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--rounds``: how often each side is timed on a GPU; 0 only counts."""
    parser.add_argument("--rounds", type=int, default=6, help="how often each side is timed")


def tables(args: argparse.Namespace) -> Iterator[Table]:
    """Waits of gated-delta-net forwards, with times on a GPU; then of Mamba2 and lightning.

    Raises:
        Missing: torch is not here.
        Different: outputs or states are not stock's, bit by bit.
    """
    try:
        torch = import_module("torch")
    except ImportError as error:
        raise Missing("it needs torch") from error
    words = set_words(_SET)
    if torch.cuda.is_available() and not torch.version.hip:
        lent.lend_beside_wheels()
        yield from _on_gpu(torch, words, 0 if args.quick else max(0, args.rounds))
    else:
        lent.lend()
        yield from _on_cpu(words, args.quick)


# -- without a GPU ---------------------------------------------------------------------------------


def _on_cpu(words: dict[str, str], quick: bool) -> Iterator[Table]:
    batches = import_module("..proof.mamba.cases", __package__)
    play = import_module("..proof.mamba.play", __package__)
    rigs = _rigs(words)
    scenarios = dict(batches.FORWARDS)
    if quick:
        scenarios = {name: scenarios[name] for name in ("half", "no mask", "decode")}
    for title, make in rigs.items():
        rig = play.Play(make())
        rows = [
            _counted(name, rig, each)
            for name, each in progress(scenarios.items(), title)
            if _is_served(title, each, words)
        ]
        rows = [row for row in rows if any(row[2:])]  # where stock does not wait, nothing changes
        if not rows:
            continue
        yield Table(
            _SET,
            f"waits of forwards with 2 {title} layers, counted on a CPU",
            ("batches", "tokens", "stock", "patched"),
            tuple(rows),
            (
                "A wait is a copy from the device, or a blocking copy to it. Outputs and states "
                "of each row are equal bit by bit.",
            ),
            Counted(
                f"waits of {title}",
                tuple((name, stock, patched) for name, _, stock, patched in rows),
                fewer_is_better=True,
            ),
        )


def _rigs(words: dict[str, str]) -> dict[str, Callable[[], Any]]:
    rig = import_module("..proof.mamba.rig", __package__)
    kinds = import_module("..proof.mamba.kinds", __package__)
    rigs: dict[str, Callable[[], Any]] = {}
    if words["mamba.zero-sync"] == "applies":
        rigs["gated-delta-net"] = rig.Rig
    if words["mamba.mamba2-chunk-indices"] == "applies":
        rigs["Mamba2"] = kinds.Mamba2
    if words["mamba.lightning-rows"] == "applies":
        rigs["lightning, seg_la"] = lambda: kinds.Lightning("seg_la")
        rigs["lightning, minimax"] = lambda: kinds.Lightning("minimax")
    return rigs


def _is_served(title: str, batches: Sequence[Any], words: dict[str, str]) -> bool:
    """A gated delta net takes all; the others prefills, tracked where the release tracks them."""
    if title == "gated-delta-net":
        return True
    play = import_module("..proof.mamba.play", __package__)
    module = "mamba.mamba" if title == "Mamba2" else "linear.lightning_backend"
    tracks = play.source_has(module, "mamba_track")
    return all(each.mode != "DECODE" and (tracks or not each.tracking) for each in batches)


def _counted(name: str, rig: Any, batches: Sequence[Any]) -> tuple[str, int, int, int]:
    expected, stock = rig.forwards(batches)
    with selected(_SET):
        actual, waited = rig.forwards(batches)
    require_same(name, expected, actual)
    return name, sum(each.tokens for each in batches), len(stock), len(waited)


# -- on a GPU --------------------------------------------------------------------------------------


def _on_gpu(torch: Any, words: dict[str, str], rounds: int) -> Iterator[Table]:
    with torch.inference_mode():
        if words["mamba.zero-sync"] == "applies":
            yield _measured(torch, words, rounds)
        if words["mamba.gdn-prefill-graph"] == "applies":
            yield mamba_captured.table(torch, rounds)
        if words[_CHUNKS] == "applies":
            yield _chunk_table(torch, rounds)
        rows, notes = [], []
        for title, make in _rigs(words).items():
            if title == "gated-delta-net":
                continue
            try:
                rows += _others(torch, title, make, words, rounds)
            except Different:
                raise
            except Exception as error:
                traceback.print_exc()
                notes.append(f"{title} could not be run: {type(error).__name__}.")
        if rows:
            yield _sync_table("Mamba2 and lightning", rows, tuple(notes))


def _measured(torch: Any, words: dict[str, str], rounds: int) -> Table:
    rig = import_module("..proof.mamba.rig", __package__)
    forwards = _Forwards(torch, rig.Rig(rig.QWEN3_NEXT, "cuda", slots=12), projections=True)
    rows: list[tuple[Cell, ...]] = []
    for name, batch in progress(_gpu_cases().items(), "gated delta nets"):
        counts = forwards.counts(name, batch)
        rows.append((name, *counts, *_spread(forwards.times(batch, rounds))))
    return Table(
        _SET,
        f"syncs and time of a forward of {rig.QWEN3_NEXT.layers} gated-delta-net layers",
        (
            *("requests", "syncs, stock", "patched", "in a trace: patched"),
            *("stock, ms", "patched, ms", "patched : stock"),
        ),
        tuple(rows),
        (
            "Qwen3-Next's dimensions in bfloat16, two GEMMs a layer in place of the projections. "
            "Syncs by torch.cuda.set_sync_debug_mode, and cudaStreamSynchronize in a trace. "
            "The GPU has about 1 ms of other work when a forward begins, and the times include it. "
            "Outputs and states of each row are equal bit by bit.",
        ),
    )


def _spread(timed: Ratio | None) -> tuple[Cell, ...]:
    return (None, None, None) if timed is None else (1e3 * timed.stock, 1e3 * timed.patched, timed)


def _others(
    torch: Any, title: str, make: Callable[[], Any], words: dict[str, str], rounds: int
) -> list[tuple[Cell, ...]]:
    batches = import_module("..proof.mamba.cases", __package__)
    kinds = import_module("..proof.mamba.kinds", __package__)
    kernel = title.rpartition(" ")[2]
    rig = (
        kinds.Mamba2(device="cuda") if title == "Mamba2" else kinds.Lightning(kernel, device="cuda")
    )
    forwards = _Forwards(torch, rig, projections=False)
    rows: list[tuple[Cell, ...]] = []
    for name, each in batches.FORWARDS.items():
        if len(each) > 1 or not _is_served(title, each, words):
            continue
        counts = forwards.counts(name, each[0])
        if any(counts):  # where stock does not wait, nothing changes
            times = _spread(forwards.times(each[0], rounds))
            rows.append((f"{title}, {name}", each[0].tokens, *counts, *times))
    return rows


def _chunk_table(torch: Any, rounds: int) -> Table:
    """Time of the metadata of Mamba2 prefills in which every request has a cached prefix."""
    batches = import_module("..proof.mamba.cases", __package__)
    rig = import_module("..proof.mamba.rig", __package__)
    play = import_module("..proof.mamba.play", __package__)
    module = import_module(play.METADATA)
    rows: list[tuple[Cell, ...]] = []
    for count in (1, 16, 64):
        mamba_rig = rig.Rig(rig.SMALL, "cuda", slots=2 * count + 8, requests=count)
        wanted = batches.Batch(
            tuple(batches.Request(100 + n, 64) for n in range(count)), tracking=False
        )
        batch = mamba_rig.batch(wanted)
        ends = torch.tensor([request.new for request in wanted.requests], device="cuda").cumsum(0)
        metadata = rig.called(
            module.ForwardMetadata,
            query_start_loc=torch.cat([ends.new_zeros(1), ends]).int(),
            mamba_cache_indices=torch.arange(count, dtype=torch.int32, device="cuda"),
        )

        def run(metadata: Any = metadata, batch: Any = batch) -> Any:
            return module.Mamba2Metadata.prepare_mixed(metadata, 256, batch)

        expected = play.plain(tuple(vars(run().mixed_metadata).values()))
        with selected(_CHUNKS):
            require_same(
                f"{count} requests",
                expected,
                play.plain(tuple(vars(run().mixed_metadata).values())),
            )

        def timed(selection: str, run: Callable[[], Any] = run) -> float:
            with selected(selection):
                return call_time(run, 20, torch.cuda.synchronize)

        ratio = in_turns(lambda: timed("none"), lambda: timed(_CHUNKS), rounds)
        rows.append((count, wanted.tokens, *_spread(ratio)))
    return Table(
        _SET,
        "metadata of Mamba2 prefills with cached prefixes, once a forward",
        ("requests", "tokens", "stock, ms", "patched, ms", "patched : stock"),
        tuple(rows),
        ("The metadata of each row is equal bit by bit.",),
    )


def _sync_table(title: str, rows: list[tuple[Cell, ...]], notes: tuple[str, ...]) -> Table:
    return Table(
        _SET,
        f"syncs of forwards with 2 layers of {title}",
        (
            *("batch", "tokens", "stock", "patched", "in a trace: patched"),
            *("stock, ms", "patched, ms", "patched : stock"),
        ),
        tuple(rows),
        (
            "The GPU has about 1 ms of other work when a forward begins, and the times include it. "
            "Outputs and states of each row are equal bit by bit.",
            *notes,
        ),
    )


def _gpu_cases() -> dict[str, Any]:
    batches = import_module("..proof.mamba.cases", __package__)
    request, batch = batches.Request, batches.Batch
    half = (request(1000, 64), request(40, 0, False), request(1000, 640), request(63, 0, False))
    tail = [request(1, 299, False)] * 7
    return {
        "4x1024 tracked": batch((request(1024),) * 4),
        "1x519 tracked": batch((request(519),)),
        "4x1000 half tracked, prefixes": batch(half),
        "4x1024 untracked": batch((request(1024, 0, False),) * 4),
        "4x1024 no tracking": batch((request(1024),) * 4, tracking=False),
        "1x32768 tracked": batch((request(32768),)),
        "decode of 8, 1 tracked": batch((request(1, 255), *tail), mode="DECODE"),
        "decode of 8, untracked": batch((*tail, tail[0]), mode="DECODE"),
    }


class _Forwards:
    """Forwards of a rig on the GPU, with GEMMs of a model's projections or without."""

    def __init__(self, torch: Any, rig: Any, projections: bool) -> None:
        self.torch = torch
        self.rig = rig
        self.known = import_module("..proof.mamba.play", __package__).known_batch
        where = {"device": "cuda", "dtype": torch.bfloat16}
        self.weights = (
            (torch.randn(2048, 12288, **where), torch.randn(4096, 2048, **where))
            if projections
            else None
        )
        self.wide: dict[int, Any] = {}

    def batch(self, wanted: Any) -> Any:
        known = self.known(self.rig, wanted)
        self.torch.cuda.synchronize()
        self.torch.cuda._sleep(_BUSY_CYCLES)
        return known

    def run(self, batch: Any, inputs: Any) -> list[Any]:
        self.rig.backend.init_forward_metadata(batch)
        outputs = []
        for layer, tensors in zip(self.rig.layers, inputs, strict=True):
            self._multiply(0, 2048, batch)
            outputs.append(self.rig.run(layer, batch, tensors))
            self._multiply(1, 4096, batch)
        return outputs

    def _multiply(self, which: int, width: int, batch: Any) -> None:
        if self.weights is not None:
            tokens = batch.input_ids.shape[0]
            self.torch.mm(self._given(tokens, width), self.weights[which])

    def _given(self, tokens: int, width: int) -> Any:
        held = self.wide.get(width)
        if held is None or held.shape[0] != tokens:
            like = {"device": "cuda", "dtype": self.torch.bfloat16}
            held = self.wide[width] = self.torch.randn(tokens, width, **like)
        return held

    def counts(self, name: str, wanted: Any) -> tuple[int, int, int]:
        """Syncs on stock, patched, and patched in a trace.

        Raises:
            Different: a result is not stock's, or no sync is counted and yet there is one.
        """
        inputs = self.rig.inputs(wanted.tokens)
        expected = self._played(wanted, inputs)
        stock = self._warned(wanted, inputs)
        with selected(_SET):
            require_same(name, expected, self._played(wanted, inputs))
            patched = self._warned(wanted, inputs)
            traced = self._traced(wanted, inputs)
            if patched == 0:
                self._gate(name, wanted, inputs)
        return stock, patched, traced

    def times(self, wanted: Any, rounds: int) -> Ratio | None:
        """Seconds of a forward, from its metadata until the GPU is done."""
        inputs = self.rig.inputs(wanted.tokens)

        def timed(selection: str) -> float:
            with selected(selection):
                return self._time(wanted, inputs)

        return in_turns(lambda: timed("none"), lambda: timed(_SET), rounds)

    def _time(self, wanted: Any, inputs: Any) -> float:
        seconds = []
        for _ in range(1 + (_FORWARDS if wanted.tokens < 10_000 else 3)):
            batch = self.batch(wanted)
            began = time.perf_counter()
            self.run(batch, inputs)
            self.torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds[1:])

    def _played(self, wanted: Any, inputs: Any) -> list[Any]:
        for _ in range(2):  # compile, and fill the allocators' caches
            self.run(self.batch(wanted), inputs)
        self.rig.fill()
        outputs = self.run(self.batch(wanted), inputs)
        return [*outputs, *(state.clone() for state in self.rig.states())]

    def _warned(self, wanted: Any, inputs: Any) -> int:
        batch = self.batch(wanted)
        seen: collections.Counter[bool] = collections.Counter()
        shown: Any = warnings.showwarning

        def show(message: Any, *_: Any, **__: Any) -> None:
            seen["synchronizing" in str(message)] += 1

        self.torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.showwarning = show
                self.run(batch, inputs)
        finally:
            warnings.showwarning = shown
            self.torch.cuda.set_sync_debug_mode("default")
        self.torch.cuda.synchronize()
        return seen[True]

    def _gate(self, name: str, wanted: Any, inputs: Any) -> None:
        batch = self.batch(wanted)
        self.torch.cuda.set_sync_debug_mode("error")
        try:
            self.run(batch, inputs)
        except RuntimeError as error:
            raise Different(f"{name}: {error}") from error
        finally:
            self.torch.cuda.set_sync_debug_mode("default")
            self.torch.cuda.synchronize()

    def _traced(self, wanted: Any, inputs: Any) -> int:
        batch = self.batch(wanted)
        activity = self.torch.profiler.ProfilerActivity
        with self.torch.profiler.profile(activities=[activity.CPU, activity.CUDA]) as profile:
            self.run(batch, inputs)
            self.torch.cuda.synchronize()  # one cudaDeviceSynchronize, not a stream's
        return sum(event.name == "cudaStreamSynchronize" for event in profile.events())
