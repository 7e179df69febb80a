"""Many random episodes of every release's own code: the long form of what the tests play.

usage: python long_run.py OUT --trees FOLDER [--episodes 1000] [--processes N] [--seconds S]
    [--seed 1] [--releases A,B,…] [--batch 250]

FOLDER holds the releases (FOLDER/VERSION/sglang). A decode worker of each release plays so many
episodes with the exact patches; a full prefix cache plays as many with swa.eviction-heap, beside
stock's. Each batch has a seed of its own, so the same arguments play the same episodes again. The
script uses no GPU; whatever sglang imports on a CPU must be on this interpreter's path.

It writes a JSON line a batch to OUT/batches.jsonl, with the shortest sequence of steps to a
failure, and the sums to OUT/summary.json. It returns 0 if every batch was played and nothing broke.
It begins with the newest releases. After S seconds it stops, and tells what was played until then.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

_TESTS = Path(__file__).resolve().parents[2] / "swa"
_SOURCE = _TESTS.parents[1] / "src"
_HARNESS = _TESTS.parent / "harness"
sys.path[:0] = [str(_TESTS), str(_HARNESS), str(_SOURCE)]

from groups import EXACT, GROUPS  # noqa: E402

from matrix import applying  # noqa: E402

HEAP = "swa.eviction-heap"


class Part(NamedTuple):
    """What one process plays of a release: what is proven, the selection, the job of a batch."""

    release: str
    played: str
    selection: str
    job: str


def main() -> int:
    """Play, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--trees", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=24 * 3600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--releases", default=",".join(GROUPS))
    parser.add_argument("--batch", type=int, default=250)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    seeds = [given.seed * 1000 + number for number in range(-(-given.episodes // given.batch))]
    run = _Run(given.out, given.trees, given.batch, seeds, time.monotonic() + given.seconds)
    parts = _parts(given.releases.split(","))
    with ThreadPoolExecutor(given.processes) as pool:
        list(pool.map(run.play, parts))
    return run.summarise(parts)


def _parts(releases: list[str]) -> list[Part]:
    workers = [Part(release, "exact", EXACT, "play") for release in reversed(releases)]
    caches = [release for release in releases if HEAP in applying("swa", release)]
    return [*(Part(release, HEAP, "none", "full_caches") for release in caches), *workers]


class _Run:
    def __init__(self, out: Path, trees: Path, batch: int, seeds: list[int], until: float) -> None:
        self._out, self._trees, self._until = out, trees, until
        self._batch, self._seeds = batch, seeds
        self._lock = Lock()
        self._found: list[dict[str, Any]] = []
        (out / "batches.jsonl").write_text("")

    def play(self, part: Part) -> None:
        """Play one part in a process of its own, and write a line when a batch is over."""
        left = self._until - time.monotonic()
        if left < 10:
            return
        jobs: list[tuple[str, dict[str, Any]]] = [("select", {"text": part.selection})]
        jobs += [(part.job, {"episodes": self._batch, "seed": seed}) for seed in self._seeds]
        path = [self._trees / part.release, _SOURCE, _HARNESS, os.environ.get("PYTHONPATH", "")]
        with subprocess.Popen(
            [
                *("timeout", str(int(left)), sys.executable),
                *(_HARNESS / "on_release.py", _TESTS / "jobs.py"),
            ],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(map(str, path)).strip(os.pathsep),
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
                "SGLANG_PERF_PATCHES": "none",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdin
            assert process.stdout
            process.stdin.write(json.dumps(jobs))
            process.stdin.close()
            told, answers = [], 0
            for text in process.stdout:
                if not text.startswith('{"job"'):
                    told.append(text)
                    continue
                line = json.loads(text)
                job = jobs[answers]
                answers += 1
                if isinstance(line.get("value"), int):
                    line["value"] = {"evicted": line["value"], "episodes": self._batch}
                if "error" in line or job[0] == part.job:
                    self._write(part, line | {"seed": job[1].get("seed")})
        if answers < len(jobs) and self._until > time.monotonic() + 10:
            output = "".join(told)[-2000:]
            self._write(part, {"error": f"ended:\n{output}"})

    def summarise(self, parts: list[Part]) -> int:
        """Sum up each part; 0 if all have as many episodes as wanted and nothing broke."""
        sums = {f"{part.release} {part.played}": Counter[str]() for part in parts}
        for line in self._found:
            sums[f"{line['release']} {line['played']}"].update(line.get("value") or {})
        failures = [line for line in self._found if "error" in line]
        wanted = self._batch * len(self._seeds)
        complete = all(counts["episodes"] >= wanted for counts in sums.values())
        summary = {"complete": complete, "played": sums, "failures": failures}
        (self._out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        print(json.dumps(summary, indent=1), flush=True)
        return 0 if complete and not failures else 1

    def _write(self, part: Part, told: dict[str, Any]) -> None:
        line = {"release": part.release, "played": part.played} | told
        with self._lock, (self._out / "batches.jsonl").open("a") as file:
            self._found.append(line)
            print(json.dumps(line), file=file, flush=True)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
