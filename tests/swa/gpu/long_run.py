"""Many random episodes of every release's own code: the long form of what the tests play.

usage: python long_run.py OUT --trees FOLDER [--episodes 1000] [--processes N] [--seconds S]
    [--seed 1] [--releases A,B,…] [--batch 250] [--kinds play,frees]

FOLDER holds the releases (FOLDER/VERSION/sglang). Half of each release's episodes are played with
the exact patches, half with all of them (``play``). Up to 0.5.19 as many further episodes are
played twice, with swa.free-without-sync and without it: free pages of both pools, their order and
the mapping must be equal after every step (``frees``). Each batch has a seed of its own, so the
same arguments play the same episodes again. The script uses no GPU; whatever sglang imports on a
CPU must be on this interpreter's path.

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

_TESTS = Path(__file__).resolve().parents[1]
_SOURCE = _TESTS.parents[1] / "src"
sys.path[:0] = [str(_TESTS), str(_SOURCE)]

from groups import ALL, EXACT, GROUPS, SYNCING  # noqa: E402

from sglang_perf_patches.model import releases as known  # noqa: E402

FREES = "frees"

Part = tuple[str, str, list[int]]
"""A release, a selection or `FREES`, and the seed of each batch: what one process plays."""


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
    parser.add_argument("--kinds", default="play,frees")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    run = _Run(given.out, given.trees, given.batch, time.monotonic() + given.seconds)
    wanted = given.releases.split(",")
    parts = []
    if "play" in given.kinds:
        parts += _parts(wanted, given.episodes, given.batch, given.seed)
    if FREES in given.kinds:
        parts += _parts_of_frees(wanted, given.episodes, given.batch, given.seed)
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


def _parts_of_frees(releases: list[str], episodes: int, batch: int, seed: int) -> list[Part]:
    last = known.KNOWN.index("0.5.19")
    seeds = [seed * 100_000 + number * batch for number in range(-(-episodes // batch))]
    return [(release, FREES, seeds) for release in releases if known.KNOWN.index(release) <= last]


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
        jobs = self._jobs(selection, seeds)
        path = [self._trees / release, _SOURCE, _TESTS, os.environ.get("PYTHONPATH", "")]
        with subprocess.Popen(
            ["timeout", str(int(left)), sys.executable, _TESTS / "on_release.py"],
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
            states: dict[int, Any] = {}
            for text in process.stdout:
                if not text.startswith('{"job"'):
                    told.append(text)
                    continue
                line = json.loads(text)
                job = jobs[answers]
                answers += 1
                seed = job[1].get("seed")
                label = {"release": release, "selection": selection, "seed": seed}
                if "error" in line or job[0] == "play":
                    self._write(label | line)
                elif seed in states:
                    self._write(label | self._compared(states[seed], line))
                elif seed is not None:
                    states[seed] = line["value"]
        if answers < len(jobs) and self._until > time.monotonic() + 10:
            said = "".join(told)[-2000:]
            self._write({"release": release, "selection": selection, "error": f"ended:\n{said}"})

    def _jobs(self, selection: str, seeds: list[int]) -> list[list[Any]]:
        if selection != FREES:
            jobs: list[list[Any]] = [["select", {"text": selection}]]
            return jobs + [["play", {"episodes": self._batch, "seed": seed}] for seed in seeds]
        jobs = []
        for number, seed in enumerate(seeds):
            load = {"seed": seed, "count": self._batch}
            load |= {"sorts": number % 4 < 2, "grouped": number % 2 == 0}
            for text in (EXACT, SYNCING):
                jobs += [["select", {"text": text}], ["states_of_episodes", load]]
        return jobs

    def _compared(self, ours: dict[str, Any], line: dict[str, Any]) -> dict[str, Any]:
        """A line of what one batch of frees was, with the patch (`ours`) and without."""
        stock = line["value"]
        if (ours["digest"], ours["steps"]) != (stock["digest"], stock["steps"]):
            return {"error": "the pools differ", "ours": ours, "stock": stock}
        waits = {"waits_stock": sum(stock["waits"].values())}
        waits["waits_patched"] = sum(ours["waits"].values())
        value = {"frees_episodes": self._batch, "frees_steps": stock["steps"], **waits}
        return {"value": value, "seconds": line["seconds"]}

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
