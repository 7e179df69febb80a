"""``bench swa``: what the swa patches let a decode server admit, on this machine's sglang and CPU.

The queue, the pools, the allocator and the batch are the installed sglang's own; no model runs and
no GPU is used. Each row is one load, played on stock and then with each selection of patches. First
it is shown that where memory does not bind, all do the same.
"""

from __future__ import annotations

import argparse
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
from .report import Cell, Table
from .timing import progress

EXACT = "swa"
POLICIES = "swa,swa.window-bounded-admission,swa.evict-before-retract"
SELECTIONS = {
    "stock": "none",
    "patched": EXACT,
    "+ window-bounded-admission": "swa,swa.window-bounded-admission",
    "+ evict-before-retract": "swa,swa.evict-before-retract",
    "with policies": POLICIES,
}


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


def add_options(_: argparse.ArgumentParser) -> None:
    """``--quick`` is all there is: it decodes one small load."""


def tables(given: argparse.Namespace) -> Iterator[Table]:
    """Admission, then decoding to the end.

    Raises:
        Different: with room for everything, the patches change an order or a step's tokens.
        Missing: sglang's decode queue can't be had here.
    """
    decoding = QUICK_DECODING if given.quick else DECODING
    found = {}
    try:
        prepare()
        for name, selection in progress(_selections(given.named).items(), "bench swa"):
            with selected(selection):
                found[name] = _measured(decoding)
    except Different:
        raise
    except Exception as error:
        raise Missing(f"{type(error).__name__}: {error}") from error
    for name, result in found.items():
        if result["unbound"] != found["stock"]["unbound"]:
            raise Different(
                f"{name}: order or tokens differ from stock although memory is not the limit"
            )
    yield _admission_table(found)
    yield _decoding_table(found, decoding)


def _selections(named: Sequence[str]) -> dict[str, str]:
    """What is compared: of the policies only those that were named, if any patch was."""
    if not named:
        return SELECTIONS
    return {
        name: selection
        for name, selection in SELECTIONS.items()
        if set(selection.split(",")) <= {"none", EXACT, *named}
    }


def _measured(decoding: Sequence[Load]) -> dict[str, Any]:
    """What every load gives with the patches that are live."""
    cases = import_module("..proof.swa.cases", __package__)  # needs torch, as --help does not
    return {
        "unbound": [cases.history(window=100, page_size=page) for page in (1, 64)],
        "admission": [_admission(cases, load) for load in ADMISSION],
        "decoding": [_decoding(load) for load in decoding],
    }


def _admission(cases: Any, load: Load) -> dict[str, Any]:
    pools = (load.window, load.page_size, load.swa_tokens, load.full_tokens)
    found: dict[str, Any] = cases.admitted(*pools, load.prompt, load.output, REQUESTS)
    return found


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


def _admission_table(found: dict[str, dict[str, Any]]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for index, load in enumerate(ADMISSION):
        stock, patched = (found[name]["admission"][index] for name in ("stock", "patched"))
        rows.append(
            (
                *(load.window, load.page_size, load.ratio, load.prompt),
                *(max(found["held"], default=0) for found in (stock, patched)),
                *(stock["admitted"], patched["admitted"], load.bound),
            )
        )
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
        counted=("admitted, stock", "admitted, patched"),
    )


def _decoding_table(found: dict[str, dict[str, Any]], decoding: Sequence[Load]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for index, load in enumerate(decoding):
        shape = (load.window, load.page_size, load.swa_tokens, load.prompt, load.output)
        for name, result in found.items():
            told = result["decoding"][index]
            counts = (told["finished"], told["retractions"], told["tokens_per_step"])
            rows.append((name, *shape, *counts))
    return Table(
        "swa",
        f"{REQUESTS} requests decoded to the end",
        (
            *("patches", "window", "page", "pool", "prompt", "output"),
            *("finished", "retractions", "tokens/step"),
        ),
        tuple(rows),
        (f"'with policies' is SGLANG_PERF_PATCHES={POLICIES}.",),
    )
