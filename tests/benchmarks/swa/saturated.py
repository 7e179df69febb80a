"""Throughput of a real stock server whose prefix cache is full, with unique prompts, by selection.

usage: PYTHONPATH=tests/harness python tests/benchmarks/swa/saturated.py RELEASE [LEAVES]

Boots the release's server with MLX on the CPU and a tiny model, by turns with each selection of
patches. Each boot begins with a prefix cache that is full of so many leaves (``full/``) and has no
room; then 16 clients send unique prompts. Prints a JSON line for each boot: requests a second in
each stretch of 10 seconds, the scheduler's CPU milliseconds for each request in the same stretches,
which depend less on what else the machine does, and what the log says of the patch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from itertools import count
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(_ROOT / "src"), str(_ROOT / "tests" / "harness")]

from linux_mlx.environments import sglang_environment  # noqa: E402
from linux_mlx.server import running_server, write_model  # noqa: E402

PATCH = "swa.eviction-heap"
SELECTIONS = ("mlx", f"mlx,{PATCH}")
"""Without the patches of `mlx`, such a server keeps some 18 MB of each request."""

LENT = {"0.5.18": "0.5.17", "0.5.19": "0.5.17", "0.5.20": "0.5.23"}
"""Releases whose Python files run on the packages of another one."""

TURNS = 2
TOKENS, REPLY, CLIENTS = 16, 8, 16
ROOM = 2 * CLIENTS * (TOKENS + REPLY)
"""Slots beside those of the leaves: what runs at once, and a prefill more."""
STRETCH_S, STRETCHES = 10, 5


def main(release: str, leaves: int) -> int:
    """Boot, fill, load and print, in turns."""
    environment = sglang_environment(LENT.get(release, release))
    with tempfile.TemporaryDirectory(prefix="saturated-") as scratch:
        folder = Path(scratch)
        model = write_model(environment, folder)
        lent = (_installed(release, folder),) if release in LENT else ()
        plugin = _plugin(folder)
        for turn in range(TURNS):
            for selection in SELECTIONS:
                log = folder / f"{turn}-{len(selection)}.log"
                more = ("--max-total-tokens", str(leaves * TOKENS + ROOM), "--skip-server-warmup")
                given: dict[str, Any] = {"turn": turn, "selection": selection, "leaves": leaves}
                with running_server(
                    environment,
                    model,
                    selection=selection,
                    log=log,
                    arguments=more,
                    settings={"FULL_LEAVES": str(leaves), "FULL_TOKENS": str(TOKENS)},
                    python_path=(*lent, _ROOT / "src", *plugin),
                ) as server:
                    given |= _loaded(server)
                text = log.read_text(errors="replace").splitlines()
                given["said"] = [line for line in text if PATCH in line or "full_cache" in line][:3]
                print(json.dumps(given), flush=True)
    return 0


def _installed(release: str, folder: Path) -> Path:
    """The release's wheel alone, in a folder of its own."""
    place = folder / "sglang"
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place))
    subprocess.run((*pip, f"sglang=={release}"), check=True)
    return place


def _plugin(folder: Path) -> tuple[Path, Path]:
    """What sglang finds `full_cache` by: its folder, and one with its metadata."""
    place = folder / "plugin"
    metadata = place / "full_cache-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: full-cache\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[sglang.srt.plugins]\nfull = full_cache:fill\n")
    return Path(__file__).parent / "full", place


def _loaded(server: Any) -> dict[str, Any]:
    """Send until the room beside the leaves is taken, then count."""
    numbers, done = count(), [0]
    lock, stop = threading.Lock(), threading.Event()

    def send() -> None:
        with lock:
            number = next(numbers)
        body = {
            "input_ids": _prompt(number),
            "sampling_params": {"max_new_tokens": REPLY, "temperature": 0, "ignore_eos": True},
        }
        asked = urllib.request.Request(
            f"{server.url}/generate",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(asked, timeout=600) as reply:
            reply.read()
        with lock:
            done[0] += 1

    def client() -> None:
        while not stop.is_set():
            send()

    threads = [threading.Thread(target=client, daemon=True) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    while done[0] < 2 * ROOM // TOKENS:  # there is no room any more
        time.sleep(0.1)
    scheduler = _scheduler(server.group)
    rates, costs = [], []
    for _ in range(STRETCHES):
        before, since, cpu = done[0], time.monotonic(), _cpu_s(scheduler)
        time.sleep(STRETCH_S)
        served = done[0] - before
        rates.append(round(served / (time.monotonic() - since), 1))
        costs.append(round(1000 * (_cpu_s(scheduler) - cpu) / served, 2))
    stop.set()
    for thread in threads:
        thread.join()
    return {"requests_a_second": rates, "cpu_ms_a_request": costs}


def _prompt(number: int) -> list[int]:
    """Unique from its first tokens on: three digits of base 400."""
    return [3 + number // 400**place % 400 for place in range(3)] + [7] * (TOKENS - 3)


def _scheduler(server: int) -> Path:
    """The scheduler's folder below /proc, of the server's children."""
    for task in Path(f"/proc/{server}/task").iterdir():
        for child in (task / "children").read_text().split():
            place = Path(f"/proc/{child}")
            if b"scheduler" in (place / "cmdline").read_bytes():
                return place
    raise RuntimeError("the server has no scheduler")


def _cpu_s(process: Path) -> float:
    """Seconds that a process has worked, in user and system mode."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20_000))
