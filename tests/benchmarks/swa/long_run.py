"""Many random episodes of every release's own code: the long form of what the tests play.

usage: python long_run.py OUT --trees FOLDER [--episodes 1000] [--processes N] [--seconds S]
    [--seed 1] [--releases A,B,…] [--batch 250]

FOLDER holds the releases (FOLDER/VERSION/sglang). Half of each release's episodes are played with
the exact patches, half with all of them. Each batch has a seed of its own, so the same arguments
play the same episodes again. The script uses no GPU; whatever sglang imports on a CPU must be on
this interpreter's path.

It writes a JSON line a batch to OUT/batches.jsonl, with the shortest sequence of steps to a
failure, and the sums to OUT/summary.json. It returns 0 if every batch was played and nothing broke.
After S seconds it stops, and tells what was played until then.
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
from typing import Any

_TESTS = Path(__file__).resolve().parents[2] / "swa"
_SOURCE = _TESTS.parents[1] / "src"
_HARNESS = _TESTS.parent / "harness"
sys.path[:0] = [str(_TESTS), str(_HARNESS), str(_SOURCE)]

from groups import ALL, EXACT, GROUPS  # noqa: E402

Part = tuple[str, str, list[int]]
"""A release, a selection, and the seed of each batch: what one process plays."""


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
    run = _Run(given.out, given.trees, given.batch, time.monotonic() + given.seconds)
    parts = _parts(given.releases.split(","), given.episodes, given.batch, given.seed)
    with ThreadPoolExecutor(given.processes) as pool:
        list(pool.map(run.play, parts))
    return run.summarise(given.episodes)


def _parts(releases: list[str], episodes: int, batch: int, seed: int) -> list[Part]:
    each = -(-episodes // (2 * batch))
    return [
        (release, selection, [seed * 1000 + number for number in range(each)])
        for release in releases
        for selection in (EXACT, ALL)
    ]


class _Run:
    def __init__(self, out: Path, trees: Path, batch: int, until: float) -> None:
        self._out, self._trees, self._batch, self._until = out, trees, batch, until
        self._lock = Lock()
        self._found: list[dict[str, Any]] = []
        (out / "batches.jsonl").write_text("")

    def play(self, part: Part) -> None:
        """Play one part in a process of its own, and write a line when a batch is over."""
        release, selection, seeds = part
        left = self._until - time.monotonic()
        if left < 10:
            return
        jobs: list[tuple[str, dict[str, Any]]] = [("select", {"text": selection})]
        jobs += [("play", {"episodes": self._batch, "seed": seed}) for seed in seeds]
        path = [self._trees / release, _SOURCE, _HARNESS, os.environ.get("PYTHONPATH", "")]
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
                if "error" in line or job[0] == "play":
                    seed = job[1].get("seed")
                    label = {"release": release, "selection": selection, "seed": seed}
                    self._write(label | line)
        if answers < len(jobs) and self._until > time.monotonic() + 10:
            said = "".join(told)[-2000:]
            self._write({"release": release, "selection": selection, "error": f"ended:\n{said}"})

    def summarise(self, episodes: int) -> int:
        """Sum up by release; 0 if each has as many episodes as wanted and nothing broke."""
        sums: dict[str, Counter[str]] = {}
        for line in self._found:
            sums.setdefault(line["release"], Counter()).update(line.get("value") or {"failures": 1})
        failures = [line for line in self._found if "error" in line]
        complete = bool(sums) and all(
            sum[count] >= episodes for sum in sums.values() for count in sum if "episodes" in count
        )
        summary = {"complete": complete, "releases": sums, "failures": failures}
        (self._out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        print(json.dumps(summary, indent=1), flush=True)
        return 0 if complete and not failures else 1

    def _write(self, line: dict[str, Any]) -> None:
        with self._lock, (self._out / "batches.jsonl").open("a") as file:
            self._found.append(line)
            print(json.dumps(line), file=file, flush=True)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
