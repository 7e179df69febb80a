"""Several Engines on one GPU by turns: for what differs between boots, or between releases.

    python tests/benchmarks/rig/fleet.py OUT.json PLAN.json

A plan is a list of boots, each an object:

- ``name`` and ``group``: the ratios of a group's Engines are to its first one;
- ``shape`` and ``options``: as ``turns.py`` has them, a list of NAME=VALUE;
- ``patches``: SGLANG_PERF_PATCHES, without it none; ``path``: folders in front of PYTHONPATH, for
  another release; ``env``: further variables;
- ``profiles``: which of ``prefills`` and ``decodes`` are profiled, by default the first.

All boot at once. Then the Engines of a group take turns while the processes of all others are
stopped, because idle schedulers poll; a plan's only Engine never is. Each round has new prompts,
the same in all Engines and runs; "replies" is a digest of the tokens of all replies.

Variables: ROUNDS (13), CELLS ("1x130 1x519 8x512 1x4000"; for the time to the first token), BATCHES
("", such as "1 16 64"; for the time per token), PROMPT, TOKENS, SETTLE (0; requests of a turn
before the one that is measured), STATES (0; so many prompts whose states are compared), BITS (0;
so many prompts whose log-probabilities are compared), DECODES ("1 16 64"; batches whose steps are
profiled), PROFILES (1), BOOT_S (240), LIMIT_S (480, of all of it: what is not done then is left
out). OUT.json is rewritten after each part: ``{"boots": {NAME: what it is, how it booted,
"prefills", "decodes"}, "groups": {GROUP: {CELL: {NAME: {"ms", "ratio", "turns",
"replies"}, "tokens equal"}}}}``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engine import quartiles
from seat import PROMPT, cells, seat

BOOT_S = float(os.environ.get("BOOT_S", "240"))
LIMIT_S = float(os.environ.get("LIMIT_S", "480"))
ROUNDS = int(os.environ.get("ROUNDS", "13"))
STATES = int(os.environ.get("STATES", "0"))
BITS = int(os.environ.get("BITS", "0"))
DECODES = os.environ.get("DECODES", "1 16 64").split()
PROFILES = os.environ.get("PROFILES", "1") == "1"
WARM = 2


class Boot:
    """An Engine in a process of its own; if it `shares`, it stops while others measure."""

    shares = True

    def __init__(self, plan: Mapping[str, Any], folder: Path) -> None:
        self.plan = plan
        self.name: str = plan["name"]
        self.found: dict[str, Any] = {**plan}
        self._log = folder / f"{self.name}.log"
        self._replies = folder / f"{self.name}.replies"
        self._replies.touch()
        self._read = self._replies.open(encoding="utf-8")
        self._look = 0.0
        self._late = False
        words = [sys.executable, __file__, "seat", str(self._replies), json.dumps(plan)]
        if plan.get("patches"):
            words = [sys.executable, "-m", "sglang_perf_patches", "run", *words]
        below = os.environ.get("PYTHONPATH", "")
        settings = {
            "PYTHONPATH": os.pathsep.join(filter(None, [plan.get("path"), below])),
            "SGLANG_PERF_PATCHES": plan.get("patches") or "none",
        }
        self._process = subprocess.Popen(
            words,
            env={**os.environ, **plan.get("env", {}), **settings},
            stdin=subprocess.PIPE,
            stdout=self._log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ask(self, *words: Any, seconds: float = 90) -> Any:
        """Have it do something while the others rest; None if it does not, or not in time."""
        assert self._process.stdin is not None
        if self._late:  # what it says next answers an earlier question
            return None
        self.rest(False)
        try:
            self._process.stdin.write((json.dumps(words) + "\n").encode())
            self._process.stdin.flush()
            return self.answer(seconds)
        except OSError:
            return None
        finally:
            self.rest(True)

    def answer(self, seconds: float) -> Any:
        """What it says next; None if it says nothing in time, has ended or failed."""
        until = time.monotonic() + seconds
        line = ""
        while time.monotonic() < until:
            line += self._read.readline()
            if line.endswith("\n"):
                message = json.loads(line)
                if isinstance(message, dict) and "error" in message:
                    self.found["error"] = message["error"]
                    return None
                return message
            if self._process.poll() is not None or (not line and self._died()):
                self.found.setdefault("error", "it has ended: see its log")
                break
            time.sleep(0.002)
        self._late = True
        return None

    def _died(self) -> bool:
        """Whether its scheduler ended while it booted: the Engine would wait for it."""
        if "boot s" in self.found or time.monotonic() < self._look:
            return False
        self._look = time.monotonic() + 2
        text = self._log.read_text(errors="replace")
        return bool(re.search(r"Scheduler hit an exception|^Process \S+:$", text, re.MULTILINE))

    def said(self) -> dict[str, Any]:
        """What its log says of memory, graphs and failures."""
        text = self._log.read_text(errors="replace")
        kept = r"[^\n]*(?:[Cc]apture|CUDA graph|avail mem|full|breakable|max_mamba)[^\n]*"
        errors = r"[^\n]*(?:Error|Exception|assert|refus|not support)[^\n]*"
        return {
            "log": [line[-260:] for line in re.findall(kept, text) if "%|" not in line][:40],
            "errors": [line[-400:] for line in re.findall(errors, text)][:12],
            "tail": text[-1500:] if "boot s" not in self.found else "",
        }

    def rest(self, on: bool) -> None:
        if self.shares and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGSTOP if on else signal.SIGCONT)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def booting(out: Path, plan: Sequence[Mapping[str, Any]]) -> Iterator[list[Boot]]:
    """The Engines of a plan, which begin to boot and end with the block; logs are next to `out`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no Engine stays behind
    folder = out.parent / f"{out.stem}-logs"
    folder.mkdir(parents=True, exist_ok=True)
    boots: list[Boot] = []
    try:
        boots.extend(Boot(each, folder) for each in plan)
        for each in boots:
            each.shares = len(boots) > 1
        yield boots
    finally:
        for each in boots:
            each.kill()


def main(out: Path, plan: Sequence[Mapping[str, Any]]) -> int:
    """Boot, take turns; write `out` after each part. 1 if an Engine did not boot."""
    began = time.monotonic()
    groups: dict[str, dict[str, Any]] = {}

    def has_time() -> bool:
        return time.monotonic() - began < LIMIT_S

    with booting(out, plan) as boots:

        def write() -> None:
            result = {"boots": {boot.name: boot.found for boot in boots}, "groups": groups}
            out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

        up = booted(boots, began + BOOT_S)
        write()
        for group in dict.fromkeys(boot.plan["group"] for boot in up):
            members = [boot for boot in up if boot.plan["group"] == group]
            for name, measure in parts().items():
                if has_time():
                    compared = groups.setdefault(group, {})[name] = measure(members)
                    print(group, name, json.dumps(compared), flush=True)
                    write()
        for boot in up if PROFILES and shutil.which("nvidia-smi") else ():  # a profile is of a GPU
            for what, name in profiles(boot.plan):
                if has_time():
                    found = boot.ask(what, *map(int, name.split("x")))
                    boot.found.setdefault(what, {})[name] = found or boot.found.get("error")
                    print(boot.name, what, name, json.dumps(found)[:400], flush=True)
                    write()
    return int(len(up) < len(boots))


def parts() -> dict[str, Callable[[Sequence[Boot]], dict[str, Any]]]:
    found: dict[str, Callable[[Sequence[Boot]], dict[str, Any]]] = {
        name: partial(in_turn, cell=cell) for name, cell in cells().items()
    }
    if STATES:
        found["states"] = partial(same, what="states", count=STATES, compare=same_states)
    if BITS:
        found["bits"] = partial(same, what="bits", count=BITS, compare=same_bits)
    return found


def booted(boots: Sequence[Boot], until: float) -> list[Boot]:
    up = []
    for boot in boots:
        answer = boot.answer(max(1.0, until - time.monotonic()))
        boot.found |= answer or {}
        boot.found["said"] = boot.said()
        print(boot.name, json.dumps(answer), boot.found.get("error", "")[-300:], flush=True)
        if answer:
            boot.rest(True)
            up.append(boot)
        else:
            boot.kill()
    return up


def in_turn(members: Sequence[Boot], cell: tuple[int, int, int]) -> dict[str, Any]:
    """Milliseconds of each, a token where there are several, and the ratio to the first one's."""
    taken: dict[str, list[dict[str, Any]]] = {boot.name: [] for boot in members}
    failed: dict[str, str] = {}
    for number in range(-WARM, ROUNDS):
        for boot in members if number % 2 else members[::-1]:
            answer = boot.ask("time", *cell, number)
            if answer is None:
                failed[boot.name] = boot.found.get("error", "no answer")[-300:]
            elif number >= 0:
                taken[boot.name].append(answer)
        if failed:
            return {"failed": failed}
    first = taken[members[0].name]
    results: dict[str, Any] = {}
    for name, each in taken.items():
        ms = [one["ms"] for one in each]
        results[name] = {
            "ms": quartiles(ms),
            "ratio": quartiles([a / b["ms"] for a, b in zip(ms, first, strict=True)]),
            "turns": [round(value, 3) for value in ms],
            "replies": hashlib.sha256(
                json.dumps([one["tokens"] for one in each]).encode()
            ).hexdigest()[:16],
            **{key: each[-1][key] for key in ("tokens per step", "patches", "cached")},
        }
    replies = [
        pair
        for turn in zip(*taken.values(), strict=True)
        for pair in zip(*(each["tokens"] for each in turn), strict=True)
    ]
    results["tokens equal"] = f"{sum(len(set(pair)) == 1 for pair in replies)} of {len(replies)}"
    results["different tokens"] = max(one["different"] for each in taken.values() for one in each)
    return results


def same(
    members: Sequence[Boot], what: str, count: int, compare: Callable[[Any, Any], dict[str, Any]]
) -> dict[str, Any]:
    """Compare what each Engine answers with what the first one does."""
    found = {boot.name: boot.ask(what, count, seconds=180) for boot in members}
    first = found[members[0].name]
    return {
        boot.name: compare(found[boot.name], first)
        if found[boot.name] and first
        else boot.found.get("error", "no answer")[-300:]
        for boot in members
    }


def same_states(mine: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """How many replies, and layers of all ranks, equal the first Engine's."""
    layers = [
        pair
        for rank, of_rank in mine["states"].items()
        for pair in zip(of_rank["sums"], first["states"][rank]["sums"], strict=True)
    ]
    return {
        "tokens equal": _equal(mine["tokens"], first["tokens"]),
        "layers equal": f"{sum(a == b for a, b in layers)} of {len(layers)}",
        "slots written": {rank: each["written"] for rank, each in mine["states"].items()},
        "prompts cached": sum(cached > 0 for cached in mine["cached"]),
    }


def same_bits(mine: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """How many replies repeat the first Engine's log-probabilities, and the Engine's own."""
    first_tokens = zip(mine["logprobs"][0], first["logprobs"][0], strict=True)
    return {
        **{
            f"{what} equal to {to}": _equal(mine[what][0], other)
            for what in ("tokens", "logprobs")
            for to, other in (("the first's", first[what][0]), ("its own", mine[what][1]))
        },
        "of first tokens, largest difference": max(abs(a[0] - b[0]) for a, b in first_tokens),
        "different first tokens": len({each[0] for each in mine["tokens"][0]}),
    }


def _equal(ours: Sequence[Any], theirs: Sequence[Any]) -> str:
    return f"{sum(a == b for a, b in zip(ours, theirs, strict=True))} of {len(theirs)}"


def profiles(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is profiled of a boot: the name of what it does, and the cell."""
    cells_of = {
        "prefills": os.environ.get("CELLS", "1x130 1x519").split()[:2],
        "decodes": [f"{count}x{PROMPT}" for count in DECODES],
    }
    return [(what, cell) for what in plan.get("profiles", ["prefills"]) for cell in cells_of[what]]


if __name__ == "__main__":
    if sys.argv[1:2] == ["seat"]:
        seat(sys.argv[2], json.loads(sys.argv[3]))
    elif len(sys.argv) == 3:
        sys.exit(main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text("utf-8"))))
    else:
        sys.exit(__doc__)
