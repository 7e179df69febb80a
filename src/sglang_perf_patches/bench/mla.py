"""``bench mla``: the pieces of a speculative step that the mla patches shorten, on an NVIDIA GPU.

No model runs. Each piece is the installed sglang's own code; stock and patched take turns. First
it is shown that both leave the same for the kernels, bit by bit. Besides the time of each call,
the host's syncs, copies from the GPU and launches are counted, and how long a call holds the host
while the GPU has other work queued.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..proof import Different, Missing, lent
from ..proof.comparing import live, require_same
from . import words as set_words
from .report import Cell, Table
from .timing import Ratio, call_time, progress, ratio, turns

QUEUED_S = 2.8e-3
"""Work on the GPU that a call finds queued."""

CHANGED_BY = frozenset(
    f"mla.{name}"
    for name in ("draft-metadata", "draft-extend-metadata", "page-table-bound", "sync-opt-out")
)

_WHEELS = ("sgl_kernel", "sgl_kernel.flash_attn", "flashinfer")
_COLUMNS = (
    *("case", "stock, us", "patched, us", "patched : stock"),
    *("held: stock, us", "held: patched, us", "held, patched : stock"),
    *("syncs", "copies", "launches"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Two options of its own."""
    parser.add_argument("--rounds", type=int, default=7, help="how often each side is timed")
    parser.add_argument("--patches", default="", help="only these, comma-separated")


def tables(args: argparse.Namespace) -> Iterator[Table]:
    """A table for each patch that applies to the installed sglang.

    Raises:
        Missing: there is no NVIDIA GPU.
        Different: a patch leaves other values for a kernel.
        RuntimeError: a piece could not be run; the tables of the others come first.
    """
    _need_gpu()
    stood_in = lent.lend_for_broken(*_WHEELS)
    applying = [
        id for id, word in set_words("mla").items() if word == "applies" and id in CHANGED_BY
    ]
    pieces = import_module(f"{__package__}.mla_pieces").pieces(args.quick)
    rounds = 2 if args.quick else max(2, args.rounds)
    failed = []
    for patch in progress(applying, "patches"):
        mine = [piece for piece in pieces if piece.patch == patch]
        try:
            yield _table(patch, mine, rounds, stood_in)
        except Different:
            raise
        except Exception:
            traceback.print_exc()
            failed.append(patch)
    if failed:
        raise RuntimeError(f"could not run {', '.join(failed)}: see the traceback above")


def _need_gpu() -> None:
    try:
        torch = import_module("torch")
    except ImportError as error:
        raise Missing("it needs torch") from error
    if not torch.cuda.is_available() or torch.version.hip:
        raise Missing("it needs an NVIDIA GPU")


@dataclass
class _Row:
    """The results of one piece, on stock (False) and patched (True)."""

    piece: Any
    act: dict[bool, Callable[[], object]]
    calls: dict[bool, list[float]]
    held: dict[bool, list[float]]
    counts: dict[bool, tuple[int, int, int]]


def _table(patch: str, pieces: list[Any], rounds: int, stood_in: tuple[str, ...]) -> Table:
    rows = _made(patch, pieces)
    for is_patched in turns(rounds):
        with live(patch, ran=None) if is_patched else nullcontext():
            for row in rows:
                row.calls[is_patched].append(_call(row.act[is_patched]))
                row.held[is_patched].append(_held(row.act[is_patched]))
    notes = [
        "A time is of one call, back to back, until the GPU is done. Held: how long a call keeps "
        f"the host behind {QUEUED_S * 1e3} ms of queued work. Syncs: stream and event syncs."
    ]
    if stood_in:
        notes.append(
            f"Replaced by a stand-in, because it can't be loaded here: {', '.join(stood_in)}."
        )
    return Table("mla", patch, _COLUMNS, tuple(map(_cells, rows)), tuple(notes))


def _made(patch: str, pieces: list[Any]) -> list[_Row]:
    """Make every piece on stock and patched, and compare; once each, because most keep state."""
    calls: dict[bool, list[tuple[Callable[[], object], Any]]] = {}
    counts: dict[bool, list[tuple[int, int, int]]] = {}
    for is_patched in (False, True):
        with live(patch) if is_patched else nullcontext():
            calls[is_patched] = [piece.make() for piece in pieces]
            counts[is_patched] = [_counts(act) for act, _ in calls[is_patched]]
    rows = []
    for at, piece in enumerate(pieces):
        stock, patched = calls[False][at], calls[True][at]
        require_same(f"{patch}, {piece.case}", stock[1], patched[1])
        rows.append(
            _Row(
                piece,
                {False: stock[0], True: patched[0]},
                {False: [], True: []},
                {False: [], True: []},
                {side: counts[side][at] for side in (False, True)},
            )
        )
    return rows


def _cells(row: _Row) -> tuple[Cell, ...]:
    call, held = (ratio(times[False], times[True]) for times in (row.calls, row.held))
    counted = [
        f"{stock} -> {patched}" if stock != patched else str(stock)
        for stock, patched in zip(row.counts[False], row.counts[True], strict=True)
    ]
    return (row.piece.case, *_shown(call), *_shown(held), *counted)


def _shown(timed: Ratio) -> tuple[Cell, ...]:
    return round(timed.stock * 1e6, 1), round(timed.patched * 1e6, 1), timed


def _call(act: Callable[[], object]) -> float:
    return call_time(act, 30, import_module("torch").cuda.synchronize, warm_up=3)


def _held(act: Callable[[], object], count: int = 9) -> float:
    """Seconds that a call keeps the host behind queued work; the median."""
    torch: Any = import_module("torch")
    act()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(count):
        torch.cuda._sleep(_cycles(torch))
        began = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - began)
        torch.cuda.synchronize()
    return sorted(seconds)[count // 2]


_CYCLES: list[int] = []


def _cycles(torch: Any) -> int:
    """Cycles of the GPU's clock that `QUEUED_S` takes."""
    if not _CYCLES:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(1000)
        begin.record()
        torch.cuda._sleep(10_000_000)
        end.record()
        torch.cuda.synchronize()
        _CYCLES.append(int(10_000_000 * QUEUED_S * 1e3 / begin.elapsed_time(end)))
    return _CYCLES[0]


def _counts(act: Callable[[], object]) -> tuple[int, int, int]:
    """Stream and event syncs, copies from the GPU, and launches of one call."""
    torch: Any = import_module("torch")
    act()
    torch.cuda.synchronize()
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
        act()
    names = [event.name for event in profile.events()]

    def count(*starts: str) -> int:
        return sum(name.startswith(starts) for name in names)

    return (
        count("cudaStreamSynchronize", "cudaEventSynchronize"),
        count("Memcpy DtoH"),
        count("cudaLaunchKernel", "cuLaunchKernel"),
    )
