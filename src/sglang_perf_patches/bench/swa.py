"""``bench swa``: what the swa patches let a decode server admit, on this machine's sglang and CPU.

The queue, the pools, the allocator and the batch are the installed sglang's own; no model runs and
no GPU is used. Each row is one load, played on stock and then with each selection of patches that
can change it on this release. First it is shown that where memory does not bind, all do the same.
"""

from __future__ import annotations

import argparse
import gc
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..proof import Different, Missing
from ..proof.comparing import selected
from ..proof.swa import prepare
from ..proof.swa.rig import DecodeWorker
from ..proof.swa.shape import Shape
from . import words as set_words
from .report import Cell, Counted, Table
from .timing import progress

EXACT = "swa"
_IDLE, _UNPAGED = "swa.idle-admission", "swa.page-size-1"
_BOUNDED, _EVICTS = "swa.window-bounded-admission", "swa.evict-before-retract"
SELECTIONS = {
    "stock": "none",
    "patched": EXACT,
    "+ window-bounded-admission": f"{EXACT},{_BOUNDED}",
    "+ evict-before-retract": f"{EXACT},{_EVICTS}",
    "with policies": f"{EXACT},{_BOUNDED},{_EVICTS}",
}
CHANGED_BY = frozenset({"swa.tail-prealloc", _UNPAGED, _IDLE, _BOUNDED, _EVICTS})


@dataclass(frozen=True)
class Load:
    """One row: a server's pools, and 64 equal requests to it.

    Attributes:
        window: sliding window, in tokens.
        page_size: in tokens.
        swa_tokens: sliding-window pool, in tokens.
        full_tokens: full-attention pool, in tokens.
        prompt: length of each prompt, in tokens.
        output: tokens that each request decodes.
    """

    window: int
    page_size: int
    swa_tokens: int
    full_tokens: int
    prompt: int
    output: int = 128

    @property
    def reserved_by(self) -> str:
        """The exact patch that decides what one of its requests in transfer holds."""
        return _UNPAGED if self.page_size == 1 else "swa.tail-prealloc"

    @property
    def ratio(self) -> float:
        """Size of the sliding-window pool over the other's."""
        return self.swa_tokens / self.full_tokens

    @property
    def bound(self) -> int:
        """Most requests that both pools hold: min(F/L, rF/tail), and no more than there are."""
        start = max(0, self.prompt - self.window)
        tail = self.prompt - start // self.page_size * self.page_size
        most = min(self.full_tokens / self.prompt, self.swa_tokens / tail)
        return min(REQUESTS, math.floor(most))


REQUESTS = 64
ADMISSION = tuple(
    Load(window, page, swa, full, prompt)
    for window, page, swa, full in (
        (4096, 64, 262_144, 4_194_304),
        (128, 1, 65_536, 1_048_576),
    )
    for prompt in (8192, 32_768, 131_072)
)
DECODING = (
    Load(128, 64, 8192, 262_144, 1000, 400),
    Load(128, 1, 6000, 262_144, 1000, 400),
    # Stock's size for 64 running requests from 0.5.14 on, without a prefix cache.
    Load(128, 64, 24_576, 262_144, 1000, 400),
    Load(128, 1, 16_512, 262_144, 1000, 400),
)
QUICK_DECODING = (Load(32, 1, 1024, 65_536, 200, 60),)


IDLE_PAGES = (1, 64)
"""Page sizes of an idle server whose pool is smaller than what stock wants to keep free.

At page size 1 a request fits only if it holds its window alone, as swa.page-size-1 lets it.
"""


@dataclass(frozen=True)
class Plan:
    """What the patches that apply, of those that were asked for, can change.

    Attributes:
        selections: what is compared, stock first: name → the choice of patches.
        admission: loads that empty pools admit.
        idle: page sizes of an idle server.
        decoding: loads decoded to the end.
        applying: the patches.
    """

    selections: dict[str, str]
    admission: tuple[Load, ...]
    idle: tuple[int, ...]
    decoding: tuple[Load, ...]
    applying: frozenset[str]

    def changes(self, name: str, load: Load) -> bool:
        """Whether a selection can change how a load is decoded."""
        policies = set(self.selections[name].split(",")) - {EXACT}
        return name == "stock" or bool(self.applying & {load.reserved_by, *policies})


def add_options(_: argparse.ArgumentParser) -> None:
    """``--quick`` is all there is: it decodes one small load."""


def tables(args: argparse.Namespace) -> Iterator[Table]:
    """Admission, then decoding to the end.

    Raises:
        Different: with room for everything, the patches change an order or a step's tokens.
        Missing: sglang's decode queue can't be had here.
    """
    words = set_words("swa")
    applying = frozenset(id for id in CHANGED_BY if words[id] == "applies")
    plan = planned(applying, args.named, QUICK_DECODING if args.quick else DECODING)
    results = {}
    try:
        prepare()
        for name, selection in progress(plan.selections.items(), "bench swa"):
            with selected(selection):
                results[name] = _measured(plan, name)
                gc.collect()  # a queue that is left would keep a patch on, which says so
    except Different:
        raise
    except Exception as error:
        raise Missing(f"{type(error).__name__}: {error}") from error
    for name, result in results.items():
        if result["unbound"] != results["stock"]["unbound"]:
            raise Different(
                f"{name}: order or tokens differ from stock although memory is not the limit"
            )
    if plan.admission:
        yield _admission_table(results, plan)
    if plan.idle:
        yield _idle_table(results, plan)
    if plan.decoding:
        yield _decoding_table(results, plan)


def planned(applying: frozenset[str], named: Sequence[str], decoding: Sequence[Load]) -> Plan:
    """What there is to play.

    Args:
        applying: the patches that apply here, of those in `CHANGED_BY`.
        named: patches that were asked for alone; then of the policies only those.
        decoding: the loads that may be decoded.
    """
    policies = {_BOUNDED, _EVICTS} & (applying & set(named) if named else applying)
    selections = {
        name: selection
        for name, selection in SELECTIONS.items()
        if set(selection.split(",")) <= {"none", EXACT, *policies}
    }
    return Plan(
        selections,
        tuple(load for load in ADMISSION if load.reserved_by in applying),
        tuple(
            page for page in IDLE_PAGES if _IDLE in applying and (page > 1 or _UNPAGED in applying)
        ),
        tuple(load for load in decoding if policies or load.reserved_by in applying),
        applying,
    )


def _measured(plan: Plan, name: str) -> dict[str, Any]:
    """What every load gives with the patches that are live; None for what they can't change."""
    cases = import_module("..proof.swa.cases", __package__)  # needs torch, as --help does not
    is_exact = name in {"stock", "patched"}
    return {
        "unbound": [cases.history(window=100, page_size=page) for page in (1, 64)],
        "admission": [_admission(cases, load) for load in plan.admission if is_exact],
        "idle": [cases.alone_without_limit(page) for page in plan.idle if is_exact],
        "decoding": [
            _decoding(load) if plan.changes(name, load) else None for load in plan.decoding
        ],
    }


def _admission(cases: Any, load: Load) -> dict[str, Any]:
    pools = (load.window, load.page_size, load.swa_tokens, load.full_tokens)
    admitted: dict[str, Any] = cases.admitted(*pools, load.prompt, load.output, REQUESTS)
    return admitted


def _decoding(load: Load) -> dict[str, float]:
    worker = DecodeWorker(
        Shape(
            load.window,
            load.page_size,
            load.swa_tokens,
            load.full_tokens,
            context=load.prompt + load.output + 512,
        )
    )
    for _ in range(REQUESTS):
        worker.submit(load.prompt, load.output)
    worker.run(50 * load.output)
    counts = worker.counts
    return {
        "retractions": counts.retractions,
        "tokens_per_step": round(counts.tokens / max(1, counts.steps), 1),
        "finished": counts.finished,
    }


def _admission_table(results: dict[str, dict[str, Any]], plan: Plan) -> Table:
    rows: list[tuple[Cell, ...]] = []
    pairs = []
    for load, stock, patched in zip(
        plan.admission, *(results[name]["admission"] for name in ("stock", "patched")), strict=True
    ):
        rows.append(
            (
                *(load.window, load.page_size, load.ratio, load.prompt),
                *(max(each["held"], default=0) for each in (stock, patched)),
                *(stock["admitted"], patched["admitted"], load.bound),
            )
        )
        case = f"window {load.window}, page {load.page_size}, prompt {load.prompt}"
        pairs.append((case, stock["admitted"], patched["admitted"]))
    return Table(
        "swa",
        f"requests that empty pools admit, of {REQUESTS} in the queue",
        (
            *("window", "page", "ratio of pools", "prompt"),
            *("SWA tokens each, stock", "SWA tokens each, patched"),
            *("admitted, stock", "admitted, patched", "bound"),
        ),
        tuple(rows),
        (
            "Lengths in tokens. The bound is min(F / prompt, rF / tail) for a full pool of F "
            "tokens, a sliding-window pool of rF, and a tail of the window's pages.",
            "If everything fits, the order of admission and the tokens of each step are the same.",
        ),
        Counted("admitted", tuple(pairs)),
    )


def _idle_table(results: dict[str, dict[str, Any]], plan: Plan) -> Table:
    pairs = [
        (f"page {page}", stock["finished"], patched["finished"])
        for page, stock, patched in zip(
            plan.idle, *(results[name]["idle"] for name in ("stock", "patched")), strict=True
        )
    ]
    return Table(
        "swa",
        "answers of an idle server to 3 requests, two of them without max_tokens",
        ("page", "answered, stock", "answered, patched"),
        tuple((page, *pair[1:]) for page, pair in zip(plan.idle, pairs, strict=True)),
        (
            "A window of 128 and a pool of 1024 tokens for 2 running requests. Stock waits until "
            "min(max_tokens, 4096) tokens more are free, which never happens.",
        ),
        Counted("answered", tuple(pairs)),
    )


def _decoding_table(results: dict[str, dict[str, Any]], plan: Plan) -> Table:
    rows: list[tuple[Cell, ...]] = []
    pairs = []
    for index, load in enumerate(plan.decoding):
        shape = (load.window, load.page_size, load.swa_tokens, load.prompt, load.output)
        stock = results["stock"]["decoding"][index]
        for name, result in results.items():
            decoded = result["decoding"][index]
            if decoded is None:
                continue
            counts = (decoded["finished"], decoded["retractions"], decoded["tokens_per_step"])
            rows.append((name, *shape, *counts))
            if name != "stock":
                case = f"{name}, page {load.page_size}, pool {load.swa_tokens}"
                pairs.append((case, stock["tokens_per_step"], decoded["tokens_per_step"]))
    notes = []
    if "with policies" in results:
        notes.append(f"'with policies' is SGLANG_PERF_PATCHES={SELECTIONS['with policies']}.")
    return Table(
        "swa",
        f"{REQUESTS} requests decoded to the end",
        (
            *("patches", "window", "page", "pool", "prompt", "output"),
            *("finished", "retractions", "tokens/step"),
        ),
        tuple(rows),
        tuple(notes),
        Counted("tokens/step", tuple(pairs)),
    )
