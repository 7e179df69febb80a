"""``bench swa``: what the swa patches let a decode server admit, on this machine's sglang and CPU.

The queue, the pools, the allocator and the batch are the installed sglang's own; no model runs and
no GPU is used. Each row is one load. Stock and patched run in processes of their own, one after
the other; first it is shown that where memory does not bind, both do the same.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .decode_worker import DecodeWorker, Shape, prepare_process

EXACT = "swa"
POLICIES = "swa,swa.window-bounded-admission,swa.evict-before-retract"
SELECTIONS = {"stock": "none", "patched": EXACT, "with policies": POLICIES}


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
)
QUICK_DECODING = (Load(32, 1, 1024, 65_536, 200, 60),)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 1 where the patches change what they should not, or can't run."""
    parser = argparse.ArgumentParser(prog="sglang-perf-patches bench swa", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="one small load for decoding")
    parser.add_argument("--measure", metavar="SELECTION", help=argparse.SUPPRESS)
    given = parser.parse_args(None if arguments is None else list(arguments))
    decoding = QUICK_DECODING if given.quick else DECODING
    if given.measure is not None:
        print(json.dumps(measure(given.measure, decoding)))
        return 0
    try:
        found = {name: _in_process(text, given.quick) for name, text in SELECTIONS.items()}
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines()
        print(f"bench swa: {lines[-1] if lines else error}", file=sys.stderr)
        return 1
    same = len({json.dumps(result["unbound"]) for result in found.values()}) == 1
    result = {
        "sglang": found["patched"]["sglang"],
        "unbound_equal": same,
        "rows": _rows(found, decoding),
    }
    print(json.dumps(result, indent=1) if given.json else _table(result))
    return 0 if same else 1


def measure(selection: str, decoding: Sequence[Load]) -> dict[str, Any]:
    """In a process of its own: what every load gives under a selection of patches."""
    prepare_process()
    from .. import activate

    report = activate(selection)
    return {
        "sglang": report.sglang,
        "unbound": _unbound(),
        "admission": [_admission(load) for load in ADMISSION],
        "decoding": [_decoding(load) for load in decoding],
    }


def _unbound() -> list[Any]:
    """Order of admission and tokens of each step, with room for everything."""
    seen: list[Any] = []
    for page in (1, 64):
        worker = DecodeWorker(Shape(100, page, 65_536, 65_536, 2048, running=6, in_transfer=3))
        for prompt in (5, 300, 64, 65, 1000, 1, 129):
            worker.submit(prompt, 12)
        while not worker.idle and worker.counts.steps < 200:
            worker.step()
            seen.append(worker.counts.tokens)
        seen.append(worker.order)
    return seen


def _admission(load: Load) -> dict[str, int]:
    worker = _worker(load)
    reqs = worker.admit()
    held = [worker.allocated(req) - worker.evicted(req) for req in reqs]
    refused = len(worker.rejected)
    return {"admitted": len(reqs), "swa_tokens_each": max(held, default=0), "refused": refused}


def _decoding(load: Load) -> dict[str, float]:
    worker = _worker(load)
    worker.run(50 * load.output)
    counts = worker.counts
    return {
        "retractions": counts.retractions,
        "tokens_per_step": round(counts.tokens / max(1, counts.steps), 1),
        "finished": counts.finished,
    }


def _worker(load: Load) -> DecodeWorker:
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
    return worker


def _in_process(selection: str, quick: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "sglang_perf_patches.bench.swa", "--measure", selection]
    done = subprocess.run(
        [*command, "--quick"] if quick else command,
        env={**os.environ, "SGLANG_PERF_PATCHES": "none"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _rows(found: dict[str, dict[str, Any]], decoding: Sequence[Load]) -> list[dict[str, Any]]:
    rows = []
    for kind, loads in (("admission", ADMISSION), ("decoding", decoding)):
        for index, load in enumerate(loads):
            row: dict[str, Any] = {"kind": kind, **asdict(load), "ratio": load.ratio}
            if kind == "admission":
                row["bound"] = load.bound
            row |= {name: result[kind][index] for name, result in found.items()}
            rows.append(row)
    return rows


def _table(result: dict[str, Any]) -> str:
    equal = "the same" if result["unbound_equal"] else "NOT the same"
    lines = [
        f"sglang {result['sglang']}; where memory does not bind, order and tokens are {equal}",
        "",
        f"{REQUESTS} requests queued: admitted by empty pools (sliding-window tokens each)",
        f"{'window':>7} {'page':>5} {'ratio':>7} {'prompt':>7} "
        f"{'stock':>14} {'patched':>14} {'bound':>6}",
    ]
    for row in result["rows"]:
        if row["kind"] == "admission":
            cells = [
                f"{row[n]['admitted']} ({row[n]['swa_tokens_each']})" for n in ("stock", "patched")
            ]
            lines.append(
                f"{row['window']:>7} {row['page_size']:>5} {row['ratio']:>7.4f} {row['prompt']:>7} "
                f"{cells[0]:>14} {cells[1]:>14} {row['bound']:>6}"
            )
    lines += ["", "decoded to the end: retractions, tokens per step", ""]
    for row in result["rows"]:
        if row["kind"] == "decoding":
            lines.append(
                f"window {row['window']}, page {row['page_size']}, pool {row['swa_tokens']}, "
                f"prompt {row['prompt']}, output {row['output']}"
            )
            for name in SELECTIONS:
                told = row[name]
                lines.append(
                    f"  {name:<14} {told['retractions']:>6} {told['tokens_per_step']:>8.1f}"
                    f"   finished {told['finished']}"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
