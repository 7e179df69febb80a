"""64 requests in flight over a real KV transfer, stock beside patched: replies, pools, times.

usage: python transfer_load.py OUT.json [--page-size 1] [--gpus 0,1] [--seconds 300]
    [--parts long,mixed,retracted,…] [--draft 1] [--ranks 2] [--times 1] [--output 32]

Boots what `two_gpus.py` boots, with the sliding-window pool that the release makes for 64 running
requests; retracted KV goes where the release puts it. Kernels compile first. Then it plays these
parts, or those that are named in their order, on each decode server in turn:

- mixed: 64 prompts of 1 to 2,400 tokens at once, twice: replies, time to the first token,
  throughput.
- aborted: the same with every third request aborted while it waits or is in transfer: the other
  replies.
- retracted: 64 prompts that decode until the full pool is short, on both servers at once:
  retraction, of more than a host's pool of 0.2 of the device's holds, and resume.
- long: 10 prompts of 8,000 tokens at once, twice.
- longest: 3 prompts of 20,000 tokens, more than that pool holds at page size 1.
- alone: what four of the mixed requests answer alone.
- killed: 32 requests on each decode server, and the prefill server is killed: each must end, in an
  error or whole. It is to be the last part, and the others leave it its time.

Replies to the same prompt are compared, tokens and log-probabilities. After each part both pools
must be whole and no slot mapped. OUT.json is written after each load; after S seconds the run ends
with what it has. With ``--draft 1`` all servers speculate (EAGLE-3). With ``--ranks 2`` each decode
server is on both GPUs, with data-parallel attention, and its ranks share the requests.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import two_gpus
from two_gpus import Reply, Side, _equal, _start, _summary, patches_here, settled

REQUESTS, OUTPUT = 64, 96
LONGEST = 2400
GROWING_PROMPT, GROWING_OUTPUT = 1270, 400
"""64 of them come to 106,880 tokens. Of what the full pool lacks, a host's pool of 0.2 of it has
room for three quarters."""
LONG, LONGEST_OF_ALL = (10, 8000), (3, 20_000)
WARM_UP = (1, 17, 1023, 2400, 8000)
SIDES = ("stock", "patched")
PARTS = ("mixed", "aborted", "long", "retracted", "longest", "alone", "killed")
KILLED_S = 75.0
"""What the last part may take: no other one begins when less is left."""


def main() -> int:
    """Boot, play and write; 0 if every part was played as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--gpus", default="0,1")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--draft", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--output", type=int, default=OUTPUT)
    given = parser.parse_args()
    parts = given.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if "longest" in parts:
        two_gpus.CONTEXT = 32_768
    os.environ.setdefault("SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL", "2")
    os.environ.setdefault("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "90")
    os.environ.setdefault("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", "90")
    result: dict[str, Any] = {"given": {**vars(given), "out": str(given.out)}}
    result |= {"software": two_gpus.software(), "parts": {}}
    until = time.monotonic() + given.seconds
    play = _Play(result, given.out, parts, until)
    signal.signal(signal.SIGALRM, _late)
    signal.signal(signal.SIGTERM, _late)  # so that no server is left
    signal.setitimer(signal.ITIMER_REAL, given.seconds)
    try:
        for deterministic in (True, False):
            try:
                began = time.monotonic()
                with two_gpus.servers(given, deterministic, until) as sides:
                    result["deterministic"] = deterministic
                    result["boot_s"] = round(time.monotonic() - began, 1)
                    result["gpus"] = two_gpus.gpus()
                    play.all(sides)
                break
            except two_gpus.DidNotBoot as error:
                print(f"did not boot, deterministic={deterministic}: {error}", flush=True)
                result["error"] = str(error)[-1500:]
    except _Late:
        result["error"] = f"no end after {given.seconds:g} s"
    play.write()
    print(json.dumps(result, indent=1)[-6000:], flush=True)
    return 0 if result.get("ok") else 1


class _Late(Exception):
    """The time is over."""


def _late(*_: Any) -> None:
    raise _Late


class _Play:
    """The parts that are wanted, in their order."""

    def __init__(
        self, result: dict[str, Any], out: Path, parts: Sequence[str], until: float
    ) -> None:
        self._result, self._out, self._parts, self._until = result, out, parts, until
        lengths = [1 + (n * (LONGEST - 1)) // (REQUESTS - 1) for n in range(REQUESTS)]
        order = [(n * 29) % REQUESTS for n in range(REQUESTS)]  # long and short ones mixed
        self._prompts = [two_gpus.prompt(100 + n, lengths[n]) for n in order]
        self._reference: list[Reply] | None = None

    def write(self) -> None:
        self._out.write_text(json.dumps(self._result, indent=1) + "\n")

    def all(self, sides: dict[str, Side]) -> None:
        self._result["patches"] = patches_here(sides["patched"].process.pid)
        self._result["stock_has"] = patches_here(sides["stock"].process.pid)
        print(json.dumps(self._result["patches"]), flush=True)
        self._warm_up(sides)
        for name in self._parts:
            part: dict[str, Any] = {}
            self._result["parts"][name] = part
            left = self._until - time.monotonic()
            if name != "killed" and "killed" in self._parts and left < KILLED_S:
                part["error"] = f"{left:.0f} s are left, for the last part"
                continue
            print(f"{name}, {left:.0f} s left", flush=True)
            try:
                getattr(self, f"_{name}")(sides, part)
            except RuntimeError as error:  # a server that does not become idle
                part |= {"ok": False, "error": str(error)}
            print(name, json.dumps(part), flush=True)
            self.write()
        parts = self._result["parts"]
        self._result["ok"] = all(parts.get(name, {}).get("ok") for name in self._parts)

    def _warm_up(self, sides: dict[str, Side]) -> None:
        """Have kernels compile: of the prefill server by length, of both others by batch."""
        began = time.monotonic()
        took = self._result["warm_up_s"] = {}
        for load in (*((two_gpus.prompt(7, length),) for length in WARM_UP), self._prompts):
            output = 32 if len(load) > 1 else 8
            times = sides["patched"].ranks if len(load) == 1 else 1
            started = [_start(sides[side], load * times, output) for side in SIDES]
            ended = [Counter(reply.ended for reply in burst.ended()) for burst in started]
            name = f"{len(load)} of up to {max(map(len, load))}"
            took[name] = round(time.monotonic() - began, 1)
            print("warm", name, took[name], ended, flush=True)
            self.write()

    def _twice(
        self, sides: dict[str, Side], part: dict[str, Any], prompts: Sequence[list[int]]
    ) -> dict[str, list[list[Reply]]]:
        """Play a load on stock, patched, patched and stock; both replies of each side."""
        replies: dict[str, list[list[Reply]]] = {side: [] for side in SIDES}
        part |= {side: [] for side in SIDES}
        for side in (*SIDES, *reversed(SIDES)):
            if len(replies[side]) == self._result["given"]["times"]:
                continue
            given, told = self._watched(sides[side], prompts, self._result["given"]["output"])
            part[side].append(told)
            replies[side].append(given)
            print(side, json.dumps(told), flush=True)
            self.write()
        part["equal"] = _equal(replies["stock"][0], replies["patched"][0])
        for side in SIDES:
            part[f"{side}_twice"] = _equal(replies[side][0], replies[side][-1])
        part["compared"] = len(prompts)
        part["pools_whole"] = all(told["pools_whole"] for side in SIDES for told in part[side])
        return replies

    def _mixed_replies(self, sides: dict[str, Side]) -> list[Reply]:
        """What stock answers to the mixed prompts."""
        if self._reference is None:
            self._reference, _ = self._watched(sides["stock"], self._prompts, OUTPUT)
        return self._reference

    def _mixed(self, sides: dict[str, Side], part: dict[str, Any]) -> None:
        replies = self._twice(sides, part, self._prompts)
        self._reference = replies["stock"][0]
        part["different_replies"] = len({tuple(r.tokens) for r in self._reference})
        part["ok"] = part["pools_whole"] and part["equal"] == REQUESTS

    def _alone(self, sides: dict[str, Side], part: dict[str, Any]) -> None:
        some = range(0, REQUESTS, 16)
        reference = self._mixed_replies(sides)
        for side in SIDES:
            alone = [_start(sides[side], [self._prompts[n]], OUTPUT).ended()[0] for n in some]
            part[side] = _equal(alone, [reference[n] for n in some])
        part["compared"] = len(some)
        part["ok"] = part["patched"] == len(some) or not self._result["deterministic"]

    def _aborted(self, sides: dict[str, Side], part: dict[str, Any]) -> None:
        aborted = set(range(0, REQUESTS, 3))
        kept = [n for n in range(REQUESTS) if n not in aborted]
        reference = [self._mixed_replies(sides)[n] for n in kept]
        for side in SIDES:
            replies, told = self._watched(sides[side], self._prompts, OUTPUT, aborted)
            told["ended_by_abort"] = sum(replies[n].ended == "abort" for n in aborted)
            told["equal"] = _equal(reference, [replies[n] for n in kept])
            told["compared"] = len(kept)
            part[side] = told
            self.write()
        part["ok"] = all(
            part[side]["pools_whole"] and part[side]["equal"] == len(kept) for side in SIDES
        )

    def _retracted(self, sides: dict[str, Side], part: dict[str, Any]) -> None:
        prompts = [two_gpus.prompt(900 + n, GROWING_PROMPT) for n in range(REQUESTS)]
        _reset(*(sides[side] for side in SIDES))
        started = {side: _start(sides[side], prompts, GROWING_OUTPUT) for side in SIDES}
        replies = {side: burst.ended() for side, burst in started.items()}
        for side in SIDES:
            part[side] = _summary(replies[side]) | settled(sides[side])
        # Stock may abort what the host's pool can't hold.
        whole = [n for n in range(REQUESTS) if replies["stock"][n].ended == "length"]
        part["equal"] = _equal(*([replies[side][n] for n in whole] for side in SIDES))
        part["compared"] = len(whole)
        part["ok"] = (
            all(part[side]["pools_whole"] for side in SIDES)
            and part["patched"]["retractions"] > 0
            and part["patched"]["ended"] == {"length": REQUESTS}
            and part["equal"] == len(whole)
        )

    def _long(self, sides: dict[str, Side], part: dict[str, Any]) -> None:
        requests, length = LONG
        prompts = [two_gpus.prompt(2000 + n, length) for n in range(requests)]
        self._twice(sides, part, prompts)
        part["ok"] = part["pools_whole"] and part["equal"] == requests

    def _longest(self, sides: dict[str, Side], part: dict[str, Any]) -> None:
        requests, length = LONGEST_OF_ALL
        prompts = [two_gpus.prompt(3000 + n, length) for n in range(requests)]
        replies = {}
        for side in SIDES:
            replies[side], part[side] = self._watched(sides[side], prompts, OUTPUT)
        part["equal"] = _equal(replies["stock"], replies["patched"])
        part["compared"] = requests
        part["ok"] = (
            all(part[side]["pools_whole"] for side in SIDES)
            and part["patched"]["ended"] == {"length": requests}
            and (part["equal"] == requests or part["stock"]["finished"] == 0)
        )

    def _killed(self, sides: dict[str, Side], part: dict[str, Any]) -> None:
        _reset(*(sides[side] for side in SIDES))
        started = {side: _start(sides[side], self._prompts[:16] * 2, OUTPUT) for side in SIDES}
        time.sleep(0.4)
        os.killpg(sides["prefill"].process.pid, signal.SIGKILL)
        began = time.monotonic()
        for side in SIDES:
            replies = started[side].ended(began + KILLED_S / 2 - time.monotonic())
            part[side] = _summary(replies) | {"pools_whole": False}
            part[side]["ended_after_s"] = round(time.monotonic() - began, 1)
            print(side, json.dumps(part[side]), flush=True)
        for side in SIDES:
            try:
                part[side] |= settled(sides[side])
            except RuntimeError as error:
                part[side]["error"] = str(error)
            self.write()
        part["ok"] = all(
            part[side]["pools_whole"]
            and "" not in part[side]["ended"]
            and set(part[side]["ended"]) != {"length"}
            for side in SIDES
        )

    def _watched(
        self, side: Side, prompts: Sequence[list[int]], output: int, aborted: Collection[int] = ()
    ) -> tuple[list[Reply], dict[str, Any]]:
        _reset(side)
        began = time.monotonic()
        replies = _start(side, prompts, output, aborted).ended()
        seconds = time.monotonic() - began
        tokens = sum(len(reply.tokens) for reply in replies)
        told = {"seconds": round(seconds, 2), "tokens_per_s": round(tokens / seconds, 1)}
        return replies, told | _summary(replies) | settled(side)


def _reset(*sides: Side) -> None:
    for side in sides:
        settled(side)
        side.reset()


if __name__ == "__main__":
    sys.exit(main())
