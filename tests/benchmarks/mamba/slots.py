"""Many random episodes of a server with few slots for states, on every release's own code.

usage: python slots.py OUT.json --trees FOLDER [--episodes 1000] [--batch 50] [--processes N]
    [--seconds S] [--releases A,B,…]

What `tests/mamba/test_slot_exhaustion.py` plays 60 of. FOLDER holds the releases
(FOLDER/VERSION/sglang). The script uses no GPU; whatever sglang imports on a CPU must be on this
interpreter's path. An episode is drawn from its number, so the same numbers play the same episodes.

OUT.json has for each release how many episodes were played, and where stock died in how many of
them; it is rewritten after each batch. The script returns 0 if all were played and each was right.
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

_TESTS = Path(__file__).resolve().parents[2]
_SOURCE = _TESTS.parent / "src"
_HARNESS = _TESTS / "harness"
sys.path[:0] = [str(_HARNESS), str(_SOURCE)]

from matrix import newest_of_each_group  # noqa: E402

Batch = tuple[str, int, int]
"""A release, the number of the first episode, and how many."""


def main() -> int:
    """Play, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--trees", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=24 * 3600.0)
    parser.add_argument("--releases", default=",".join(newest_of_each_group("mamba")))
    given = parser.parse_args()
    releases = given.releases.split(",")
    run = _Run(given.out, given.trees, time.monotonic() + given.seconds)
    batches = [
        (release, first, min(given.batch, given.episodes - first))
        for first in range(0, given.episodes, given.batch)
        for release in releases
    ]
    with ThreadPoolExecutor(given.processes) as pool:
        list(pool.map(run.play, batches))
    played = {release: run.played[release] for release in releases}
    return 0 if not run.wrong and set(played.values()) == {given.episodes} else 1


class _Run:
    def __init__(self, out: Path, trees: Path, until: float) -> None:
        self.played: Counter[str] = Counter()
        self.wrong: list[dict[str, Any]] = []
        self._out, self._trees, self._until = out, trees, until
        self._deaths: dict[str, Counter[str]] = {}
        self._lock = Lock()

    def play(self, batch: Batch) -> None:
        """Play a batch in a process of its own."""
        release, first, count = batch
        left = self._until - time.monotonic()
        if left < 10:
            return
        path = [self._trees / release, _SOURCE, _HARNESS, os.environ.get("PYTHONPATH", "")]
        words = (sys.executable, "-W", "ignore", _HARNESS / "on_release.py")
        try:
            done = subprocess.run(
                [*words, _TESTS / "mamba" / "slots_jobs.py"],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(map(str, path)).strip(os.pathsep),
                    "OMP_NUM_THREADS": "1",
                    "CUDA_VISIBLE_DEVICES": "",
                    "SGLANG_PERF_PATCHES": "none",
                },
                input=json.dumps([("episodes", {"count": count, "first": first})]),
                capture_output=True,
                text=True,
                timeout=left,
            )
        except subprocess.TimeoutExpired:
            return
        told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"job"')]
        with self._lock:
            if len(told) == 1 and "value" in told[0]:
                self.played[release] += count
                self._deaths.setdefault(release, Counter()).update(told[0]["value"])
            else:
                error = told[0]["error"] if told else done.stderr[-3000:]
                self.wrong.append({"release": release, "first": first, "error": error})
            self._write()

    def _write(self) -> None:
        releases = {
            release: {"episodes": played, "stock": self._deaths[release]}
            for release, played in self.played.items()
        }
        summary = {"releases": releases, "wrong": self.wrong}
        self._out.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
