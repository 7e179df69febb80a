"""Throughput of a real stock server whose prefix cache is full, with unique prompts, by selection.

usage: PYTHONPATH=tests/harness python tests/benchmarks/swa/saturated.py RELEASE [LEAVES]

Boots the release's server with MLX on the CPU and a tiny model, by turns with each selection of
patches. Each boot is filled with unique prompts of 16 tokens until its pool has so many leaves and
no room; then 16 clients send more of them for a while. Prints a JSON line for each boot: requests a
second in each stretch of 10 seconds, and the state of the patch.
"""

from __future__ import annotations

import json
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
from sglang_perf_patches.judge import downloads  # noqa: E402

PATCH = "swa.eviction-heap"
SELECTIONS = ("mlx", f"mlx,{PATCH}")
"""Without the patches of `mlx`, such a server keeps some 18 MB of each request."""

LENT = {"0.5.18": "0.5.17", "0.5.19": "0.5.17", "0.5.20": "0.5.23"}
"""Releases whose Python files run on the packages of another one."""

TURNS = 2
TOKENS, REPLY, CLIENTS = 16, 1, 16
STRETCH_S, STRETCHES = 10, 6


def main(release: str, leaves: int) -> int:
    """Boot, fill, load and print, in turns."""
    environment = sglang_environment(LENT.get(release, release))
    lent = (downloads.tree(release),) if release in LENT else ()
    with tempfile.TemporaryDirectory(prefix="saturated-") as scratch:
        folder = Path(scratch)
        model = write_model(environment, folder)
        for turn in range(TURNS):
            for selection in SELECTIONS:
                log = folder / f"{turn}-{len(selection)}.log"
                more = ("--max-total-tokens", str(leaves * TOKENS), "--skip-server-warmup")
                given: dict[str, Any] = {"turn": turn, "selection": selection, "leaves": leaves}
                with running_server(
                    environment,
                    model,
                    selection=selection,
                    log=log,
                    arguments=more,
                    python_path=(*lent, _ROOT / "src"),
                ) as server:
                    given |= _loaded(server.url, leaves)
                text = log.read_text(errors="replace").splitlines()
                given["said"] = [line for line in text if PATCH in line or "patches" in line][:2]
                print(json.dumps(given), flush=True)
    return 0


def _loaded(url: str, leaves: int) -> dict[str, Any]:
    """Fill the pool and a little more, then count."""
    numbers, done = count(), [0]
    lock, stop = threading.Lock(), threading.Event()

    def client() -> None:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not stop.is_set():
            with lock:
                number = next(numbers)
            # Three digits of base 400 make a prompt unique from its first tokens on.
            digits = [3 + number // 400**place % 400 for place in range(3)]
            body = {
                "input_ids": digits + [7] * (TOKENS - 3),
                "sampling_params": {"max_new_tokens": REPLY, "temperature": 0, "ignore_eos": True},
            }
            asked = urllib.request.Request(
                f"{url}/generate",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with direct.open(asked, timeout=600) as reply:
                reply.read()
            with lock:
                done[0] += 1

    threads = [threading.Thread(target=client, daemon=True) for _ in range(CLIENTS)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    while done[0] < leaves * 1.1:
        time.sleep(0.1)
    filled_s = time.monotonic() - began
    rates = []
    for _ in range(STRETCHES):
        before, since = done[0], time.monotonic()
        time.sleep(STRETCH_S)
        rates.append(round((done[0] - before) / (time.monotonic() - since), 1))
    stop.set()
    for thread in threads:
        thread.join()
    return {"filled_s": round(filled_s), "requests_a_second": rates}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3000))
