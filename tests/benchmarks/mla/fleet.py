"""Several Engines on one GPU, measured in turns: ``python fleet.py OUT.json PLAN.json``.

A plan is a list of boots: ``{"name", "group", "patches", "path", "options", "env", "profile"}``.
`path` goes in front of PYTHONPATH (another release), and `patches` is SGLANG_PERF_PATCHES. Members
of the group ``compare`` compare their draft-extends instead (see ``compare/``).

All boot at once. Then the Engines of a group take turns while the others are idle, so that a drift
of the machine hits them all. Each round has new prompts, the same for all. OUT.json is rewritten
after each part. It holds what each Engine measured. For each pair of a stock and another Engine in
a group it has the ratio of their turns with quartiles, and for how many requests all gave the same
tokens.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BOOT_S = float(os.environ.get("BOOT_S", "240"))
ROUNDS = int(os.environ.get("ROUNDS", "6"))
BATCHES = tuple(map(int, os.environ.get("BATCHES", "1,16,64").split(",")))
TOKENS = int(os.environ.get("TOKENS", "256"))


class Seat:
    """An Engine in a process of its own."""

    def __init__(self, boot: dict[str, Any], folder: Path) -> None:
        """Start to boot."""
        self.boot = boot
        self.log = folder / f"{boot['name']}.log"
        self._file = folder / f"{boot['name']}.replies"
        self._file.touch()
        self._read = self._file.open()
        self.found: dict[str, Any] = {}
        below = boot.get("pythonpath") or os.environ["PYTHONPATH"]
        path = os.pathsep.join(p for p in (boot.get("path"), below) if p)
        env = {**os.environ, **boot.get("env", {}), "PYTHONPATH": path}
        env["SGLANG_PERF_PATCHES"] = boot["patches"]
        run = [sys.executable, "-m", "sglang_perf_patches", "run", sys.executable]
        words = [*run, str(HERE / "seat.py"), str(self._file), *boot["options"]]
        log = self.log.open("w")
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )

    def answer(self, seconds: float) -> dict[str, Any]:
        """What it says next; an ``error`` if it says nothing in time, or has ended."""
        until = time.time() + seconds
        while time.time() < until:
            line = self._read.readline()
            if line.endswith("\n"):
                return dict(json.loads(line))
            if self._process.poll() is not None:
                return {"error": f"ended with {self._process.returncode}"}
            time.sleep(0.01)
        return {"error": f"nothing in {seconds:.0f} s"}

    def ask(self, *words: Any, seconds: float = 90) -> dict[str, Any]:
        """Have it do something."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(words) + "\n").encode())
            self._process.stdin.flush()
        except OSError as error:
            return {"error": repr(error)}
        return self.answer(seconds)

    def captured(self) -> list[str]:
        """What the Engine's log says of captured graphs."""
        said = self.log.read_text(errors="replace")
        return re.findall(r"(Capture [^\n]*(?:end|mem usage)[^\n]*)", said)[:12]

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    def rest(self, on: bool) -> None:
        """Stop all its processes, or let them continue: a scheduler that idles is never still."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGSTOP if on else signal.SIGCONT)

    def kill(self) -> None:
        """End it."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)


def main(out: Path, plan: list[dict[str, Any]]) -> None:
    """Boot, take turns, compare."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))
    seats = []
    for boot in plan:
        seats.append(Seat(boot, folder))
        time.sleep(float(os.environ.get("STAGGER_S", "0")))
    result: dict[str, Any] = {"boots": {}, "groups": {}}

    def write() -> None:
        out.write_text(json.dumps(result, indent=1) + "\n")

    until = time.time() + BOOT_S
    up = []
    for seat in seats:
        said = seat.answer(max(1.0, until - time.time()))
        print(seat.boot["name"], said.get("boot_s"), str(said.get("error", ""))[-300:], flush=True)
        entry = {**seat.boot, **said, "captured": seat.captured()}
        if "error" in said:
            entry["log"] = seat.tail()
            seat.kill()
        else:
            up.append(seat)
        result["boots"][seat.boot["name"]] = entry
    write()
    for seat in up:
        seat.rest(True)
    for group in dict.fromkeys(seat.boot["group"] for seat in up):
        members = [seat for seat in up if seat.boot["group"] == group]
        if group == "compare":
            for seat in members:
                seat.rest(False)
                result["groups"][seat.boot["name"]] = compared(seat)
                result["boots"][seat.boot["name"]]["log"] = seat.tail()
                seat.kill()
                print(seat.boot["name"], json.dumps(result["groups"][seat.boot["name"]]))
            write()
            continue
        result["groups"][group] = measured = {}
        for count in BATCHES:
            measured[f"bs{count}"] = turns(members, count)
            write()
            print(group, count, json.dumps(measured[f"bs{count}"]["ratios"]), flush=True)
        for seat in members:
            if seat.boot.get("profile") is False:
                continue
            seat.rest(False)
            said = seat.ask("profile")
            seat.rest(True)
            measured.setdefault("calls", {})[seat.boot["name"]] = said
            print(seat.boot["name"], json.dumps(said), flush=True)
            write()
        for seat in members:
            result["boots"][seat.boot["name"]]["log"] = seat.tail()[-1200:]
            seat.kill()
    write()


def compared(seat: Seat) -> dict[str, Any]:
    """What an Engine that compares its draft-extends found, at some batch sizes."""
    said = [seat.ask("time", count, 7, 48) for count in (1, 2, 5, 16, 17, 63, 64)]
    errors = [each["error"] for each in said if "error" in each]
    out = Path(seat.boot["env"]["COMPARE_OUT"])
    return {"errors": errors, **(json.loads(out.read_text()) if out.exists() else {})}


def turns(members: list[Seat], count: int) -> dict[str, Any]:
    """Have the members generate in turns, in another order each round."""

    def turn(seat: Seat, *words: Any) -> dict[str, Any]:
        seat.rest(False)
        said = seat.ask("time", count, *words)
        seat.rest(True)
        return said

    for seat in members:
        turn(seat, 1000 + count, 16)
    found: dict[str, list[dict[str, Any]]] = {seat.boot["name"]: [] for seat in members}
    for number in range(ROUNDS):
        for seat in members if number % 2 else members[::-1]:
            found[seat.boot["name"]].append(turn(seat, number, TOKENS))
    errors = {name: said for name, all in found.items() for said in all if "error" in said}
    if errors:
        return {"ratios": {}, "errors": errors}
    times = {name: [said["ms"] for said in all] for name, all in found.items()}
    stock = [seat.boot["name"] for seat in members if seat.boot["patches"] == "none"]
    ratios = {}
    for base in stock:
        for name in times:
            if name != base:
                each = [new / old for old, new in zip(times[base], times[name], strict=True)]
                ratios[f"{name} : {base}"] = [
                    round(value, 3) for value in statistics.quantiles(each, n=4)
                ]
    rounds = [[all[i] for all in found.values()] for i in range(ROUNDS)]
    requests = sum(len(one[0]["each"]) for one in rounds)
    same = sum(
        len({said["each"][i] for said in one}) == 1
        for one in rounds
        for i in range(len(one[0]["each"]))
    )
    return {
        "ratios": ratios,
        "ms": {name: round(statistics.median(all), 4) for name, all in times.items()},
        "turns": {name: [round(value, 4) for value in all] for name, all in times.items()},
        "requests that all said the same of": [same, requests],
        "different tokens": max(said["different"] for one in rounds for said in one),
        "tokens per verify step": {name: all[-1]["per_step"] for name, all in found.items()},
        "ran": {name: all[-1]["ran"] for name, all in found.items()},
        "left out": {name: all[-1]["left_out"] for name, all in found.items()},
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
