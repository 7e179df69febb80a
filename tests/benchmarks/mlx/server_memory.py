"""The memory of a real stock MLX server, as booted and with requests in flight, by selection.

    python3 tests/benchmarks/mlx/server_memory.py --release 0.5.23 --turns 2

boots the server of the release's environment on the CPU, with Qwen3-0.6B's shape in bfloat16, by
turns with each selection of patches. It sends each boot the same loads: prompts of their own all at
once, then one after the other, then prompts with a shared prefix all at once. It prints one line of
JSON for each moment: what the scheduler's process has in memory (RSS), and the most that it had
since the moment before. `results/mlx.md` says what was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import served

_ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(_ROOT / "src"), str(_ROOT / "tests" / "harness")]

from linux_mlx import completions  # noqa: E402
from linux_mlx.completions import Completion, complete  # noqa: E402
from linux_mlx.environments import sglang_environment  # noqa: E402
from linux_mlx.processes import members  # noqa: E402
from linux_mlx.server import running_server  # noqa: E402

completions._TIMEOUT_S = 1800  # a CPU takes minutes for such a model
_SELECTIONS = "none:mlx,-mlx.first-buffer:mlx"


def main() -> int:
    """Boot, load and print, in turns."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", default="0.5.23")
    parser.add_argument("--selections", default=_SELECTIONS, help="with colons between")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32, help="of a prompt")
    parser.add_argument("--replies", type=int, default=6, help="tokens of a reply")
    parser.add_argument("--slots", type=int, default=8192, help="of the server's pool, in tokens")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mlx-memory-") as scratch:
        folder, environment = Path(scratch), sglang_environment(given.release)
        served._write_model(environment, folder / "model", "0.6b", [str(_ROOT / "src")])
        selections = given.selections.split(":")
        for turn in range(given.turns):
            for selection in selections[:: -1 if turn % 2 else 1]:
                for row in _measured(environment, folder, selection, given):
                    told = {"turn": turn, "patches": selection} | row
                    print(json.dumps(told), flush=True)
    return 0


def _measured(
    environment: Any, folder: Path, selection: str, given: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """The memory of one boot after each load."""
    with running_server(
        environment,
        folder / "model",
        selection=selection,
        log=folder / "log",
        launcher=(environment.python, "-W", "ignore", "-m", "sglang_perf_patches", "run"),
        python_path=[_ROOT / "src"],
        arguments=("--max-total-tokens", str(given.slots)),
    ) as server:
        pid = max(members(server.group), key=lambda each: _status(each, "VmRSS"))
        yield _row("booted", pid)
        prompts = [_words(number, given.tokens) for number in range(2 * given.requests)]
        shared = _words(99, given.tokens // 2)
        loads = {
            "at once": prompts[: given.requests],
            "one after the other": prompts[given.requests :],
            "shared prefix, at once": [
                f"{shared} {_words(100 + number, given.tokens // 2)}"
                for number in range(given.requests)
            ],
        }
        for load, each in loads.items():
            asked = [Completion(prompt, given.replies) for prompt in each]
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
            for some in [[one] for one in asked] if load.startswith("one") else [asked]:
                complete(server.url, some)
            time.sleep(1)
            yield _row(load, pid)


def _row(load: str, pid: int) -> dict[str, Any]:
    kept, peak = (round(_status(pid, name) / 1000) for name in ("VmRSS", "VmHWM"))
    return {"load": load, "kept MB": kept, "peak MB": peak}


def _status(pid: int, name: str) -> int:
    """A figure of a process, in kB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def _words(seed: int, count: int) -> str:
    return " ".join(f"w{1 + (31 * seed + 7 * number) % 400}" for number in range(count))


if __name__ == "__main__":
    sys.exit(main())
