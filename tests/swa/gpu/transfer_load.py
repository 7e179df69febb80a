"""64 requests in flight over a real KV transfer, stock beside patched: replies, pools, times.

usage: python transfer_load.py OUT.json [--page-size 1] [--gpus 0,1] [--seconds 300]

Boots what `two_gpus.py` boots: a stock prefill server on the first GPU, and on the second a stock
and a patched decode server. Their sliding-window pool is the one that the release makes for 64
running requests. Then it plays these parts on each decode server in turn:

1. 64 prompts of 1 to 2,400 tokens at once, twice: replies, time to the first token, throughput.
2. The same with every third request aborted while it waits or is in transfer: the other replies.
3. 64 prompts of 1,000 tokens that decode until the full pool is short: retraction and resume.
4. 16 requests on each decode server, and the prefill server is killed: each must end, in an error
   or whole.

Replies to the same prompt are compared, tokens and log-probabilities, and with the reply to the
request sent alone. After each part both pools must be whole and no slot mapped. OUT.json is written
after each part; after S seconds the run ends with what it has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE))

import two_gpus  # noqa: E402
from two_gpus import BOOTSTRAP, PORTS, Side  # noqa: E402

REQUESTS, OUTPUT = 64, 96
LONGEST = 2400
LONG_PROMPT, LONG_OUTPUT = 1000, 600
FULL, RATIO = 84_000, 0.5
SIDES = ("stock", "patched")


@dataclass
class Reply:
    """What came of one request; times in seconds since it was sent."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    first: float | None = None
    seconds: float = 0.0
    ended: str = ""

    def equals(self, other: Reply) -> bool:
        """Whether tokens and log-probabilities are the same, bit by bit."""
        return self.tokens == other.tokens and self.logprobs == other.logprobs


def main() -> int:
    """Boot, play and write; 0 if every part was played as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--gpus", default="0,1")
    parser.add_argument("--backend", default="nixl")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--deterministic", type=int, default=1)
    given = parser.parse_args()
    two_gpus.FULL, two_gpus.SWA = FULL, int(FULL * RATIO)
    two_gpus.AT_ONCE = (REQUESTS,)
    os.environ.setdefault("SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL", "2")
    os.environ.setdefault("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "100")
    os.environ.setdefault("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", "20")
    result: dict[str, Any] = {"page_size": given.page_size, "parts": {}}
    play = _Play(result, given.out)
    signal.signal(signal.SIGALRM, two_gpus._late)
    signal.setitimer(signal.ITIMER_REAL, given.seconds)
    until = time.monotonic() + given.seconds
    try:
        result["transfer"] = two_gpus._choose_way(given.gpus.split(","))
        for deterministic in (True, False) if given.deterministic else (False,):
            try:
                with two_gpus._servers(given, deterministic, until) as sides:
                    result["deterministic"] = deterministic
                    play.all(sides)
                break
            except two_gpus._DidNotBoot as error:
                print(f"did not boot, deterministic={deterministic}: {error}", flush=True)
                result["error"] = str(error)[-1500:]
    except two_gpus._Late:
        result["error"] = f"no end after {given.seconds:g} s"
    play.write()
    print(json.dumps(result, indent=1)[-6000:], flush=True)
    return 0 if result.get("ok") else 1


class _Play:
    """The parts, in order."""

    def __init__(self, result: dict[str, Any], out: Path) -> None:
        self._result, self._out = result, out
        lengths = [1 + (n * (LONGEST - 1)) // (REQUESTS - 1) for n in range(REQUESTS)]
        order = [(n * 29) % REQUESTS for n in range(REQUESTS)]  # long and short ones mixed
        self._mixed = [two_gpus._prompt(100 + n, lengths[n]) for n in order]
        self._long = [two_gpus._prompt(900 + n, LONG_PROMPT) for n in range(REQUESTS)]

    def write(self) -> None:
        self._out.write_text(json.dumps(self._result, indent=1) + "\n")

    def all(self, sides: dict[str, Side]) -> None:
        self._result["patches"] = two_gpus._live(sides["patched"].process.pid)
        print(json.dumps(self._result["patches"]), flush=True)
        # Kernels compile, those of the prefill server for every length.
        began = time.monotonic()
        _burst(sides["patched"], self._mixed, OUTPUT)
        _burst(sides["stock"], self._mixed[:8], OUTPUT)
        self._result["warm_up_s"] = round(time.monotonic() - began, 1)
        print("warm", self._result["warm_up_s"], flush=True)
        replies = self._mixed_loads(sides)
        self._lonely(sides, replies)
        self._aborted(sides, replies)
        self._retracted(sides)
        self._killed(sides)
        parts = self._result["parts"]
        self._result["ok"] = len(parts) == 5 and all(part["ok"] for part in parts.values())

    def _mixed_loads(self, sides: dict[str, Side]) -> dict[str, list[Reply]]:
        part: dict[str, Any] = {side: [] for side in SIDES}
        all_replies: dict[str, list[list[Reply]]] = {side: [] for side in SIDES}
        for side in (*SIDES, *reversed(SIDES)):
            replies, told = self._watched(sides[side], self._mixed, OUTPUT)
            part[side].append(told)
            all_replies[side].append(replies)
            print("mixed", side, json.dumps(told), flush=True)
        first = {side: all_replies[side][0] for side in SIDES}
        part["equal"] = _equal(first["stock"], first["patched"])
        part["stock_twice"] = _equal(*all_replies["stock"])
        part["patched_twice"] = _equal(*all_replies["patched"])
        part["different_replies"] = len({tuple(r.tokens) for r in first["stock"]})
        part["compared"] = REQUESTS
        whole = all(told["pools_whole"] for side in SIDES for told in part[side])
        part["ok"] = whole and part["equal"] == REQUESTS
        self._done("mixed", part)
        return first

    def _lonely(self, sides: dict[str, Side], replies: dict[str, list[Reply]]) -> None:
        """What some requests answer alone, on stock."""
        some = range(0, REQUESTS, 8)
        alone = [_burst(sides["stock"], [self._mixed[n]], OUTPUT)[0] for n in some]
        part = {side: _equal(alone, [replies[side][n] for n in some]) for side in SIDES}
        part["compared"] = len(some)
        part["ok"] = part["patched"] == len(some) or not self._result["deterministic"]
        self._done("as_alone", part)

    def _aborted(self, sides: dict[str, Side], replies: dict[str, list[Reply]]) -> None:
        part: dict[str, Any] = {}
        aborted = set(range(0, REQUESTS, 3))
        kept = [n for n in range(REQUESTS) if n not in aborted]
        for side in SIDES:
            found, told = self._watched(sides[side], self._mixed, OUTPUT, aborted)
            told["ended_by_abort"] = sum(found[n].ended == "abort" for n in aborted)
            told["equal"] = _equal([replies["stock"][n] for n in kept], [found[n] for n in kept])
            told["compared"] = len(kept)
            part[side] = told
        part["ok"] = all(
            part[side]["pools_whole"] and part[side]["equal"] == len(kept) for side in SIDES
        )
        self._done("aborted", part)

    def _retracted(self, sides: dict[str, Side]) -> None:
        part: dict[str, Any] = {}
        found = {}
        for side in SIDES:
            found[side], part[side] = self._watched(sides[side], self._long, LONG_OUTPUT)
        part["equal"] = _equal(found["stock"], found["patched"])
        part["compared"] = REQUESTS
        part["ok"] = (
            all(part[side]["pools_whole"] for side in SIDES)
            and part["patched"]["peak_retracted"] > 0
            and part["equal"] == REQUESTS
        )
        self._done("retracted", part)

    def _killed(self, sides: dict[str, Side]) -> None:
        part: dict[str, Any] = {}
        for side in SIDES:
            _reset(sides[side])
        with ThreadPoolExecutor(2) as pool:
            waiting = {
                side: pool.submit(_burst, sides[side], self._mixed[:16] * 2, OUTPUT)
                for side in SIDES
            }
            time.sleep(0.4)
            os.killpg(sides["prefill"].process.pid, signal.SIGKILL)
            for side in SIDES:
                replies = waiting[side].result()
                told = _settled(sides[side])
                told["ended"] = {
                    how: sum(reply.ended == how for reply in replies)
                    for how in {reply.ended for reply in replies}
                }
                part[side] = told
        part["ok"] = all(part[side]["pools_whole"] for side in SIDES)
        self._done("killed", part)

    def _watched(
        self, side: Side, prompts: Sequence[list[int]], output: int, aborted: Collection[int] = ()
    ) -> tuple[list[Reply], dict[str, Any]]:
        _settled(side)
        _reset(side)
        began = time.monotonic()
        replies = _burst(side, prompts, output, aborted)
        seconds = time.monotonic() - began
        firsts = [reply.first for reply in replies if reply.first is not None]
        told = {
            "seconds": round(seconds, 2),
            "finished": sum(reply.ended == "length" for reply in replies),
            "ttft_median_s": round(statistics.median(firsts), 3) if firsts else None,
            "ttft_last_s": round(max(firsts), 3) if firsts else None,
            "tokens_per_s": round(sum(len(reply.tokens) for reply in replies) / seconds, 1),
        }
        return replies, told | _settled(side)

    def _done(self, name: str, part: dict[str, Any]) -> None:
        self._result["parts"][name] = part
        print(name, json.dumps(part), flush=True)
        self.write()


def _equal(first: Sequence[Reply], second: Sequence[Reply]) -> int:
    return sum(a.equals(b) for a, b in zip(first, second, strict=True))


def _burst(
    side: Side, prompts: Sequence[list[int]], output: int, aborted: Collection[int] = ()
) -> list[Reply]:
    """Send all at once; abort some while they wait or are in transfer."""
    replies = [Reply() for _ in prompts]
    threads = []
    for number, ids in enumerate(prompts):
        room = next(two_gpus._ROOMS)
        threads += [
            threading.Thread(target=_prefill, args=(ids, output, room), daemon=True),
            threading.Thread(
                target=_decode, args=(side, ids, output, room, replies[number]), daemon=True
            ),
        ]
        if number in aborted:
            after = 0.02 + 0.9 * (number / len(prompts))
            threads.append(threading.Thread(target=_abort, args=(side, room, after), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=160)
    return replies


def _body(ids: list[int], output: int, room: int, **more: Any) -> bytes:
    sampling = {"temperature": 0, "max_new_tokens": output, "ignore_eos": True}
    named = {
        "rid": f"room-{room}",
        "input_ids": ids,
        "sampling_params": sampling,
        "return_logprob": True,
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": BOOTSTRAP,
        "bootstrap_room": room,
    }
    return json.dumps(named | more).encode()


def _prefill(ids: list[int], output: int, room: int) -> None:
    with contextlib.suppress(OSError, urllib.error.URLError, ValueError):
        two_gpus._post(PORTS["prefill"], _body(ids, output, room))


def _decode(side: Side, ids: list[int], output: int, room: int, reply: Reply) -> None:
    began = time.monotonic()
    request = urllib.request.Request(
        f"http://127.0.0.1:{side.port}/generate",
        _body(ids, output, room, stream=True),
        {"Content-Type": "application/json"},
    )
    chunks: list[dict[str, Any]] = []
    try:
        with urllib.request.urlopen(request, timeout=150) as answer:
            for line in answer:
                text = line.decode().strip()
                if not text.startswith("data:") or text == "data: [DONE]":
                    continue
                chunk = json.loads(text[5:])
                if "error" in chunk:
                    reply.ended = "error"
                    break
                if reply.first is None and chunk.get("output_ids"):
                    reply.first = time.monotonic() - began
                chunks.append(chunk)
    except urllib.error.HTTPError as error:
        reply.ended = f"http {error.code}"
    except (OSError, ValueError) as error:
        reply.ended = type(error).__name__
    reply.seconds = time.monotonic() - began
    if not chunks or reply.ended:
        return
    last = chunks[-1]
    reply.ended = str((last["meta_info"].get("finish_reason") or {}).get("type"))
    # Each chunk has all tokens so far, or only the new ones, depending on the release.
    whole = len(last.get("output_ids") or ()) == output
    told = [last] if whole else chunks
    reply.tokens = [int(n) for chunk in told for n in chunk.get("output_ids") or ()]
    logprobs = last["meta_info"].get("output_token_logprobs") or []
    if len(logprobs) != len(reply.tokens):
        logprobs = [
            entry
            for chunk in chunks
            for entry in chunk["meta_info"].get("output_token_logprobs") or ()
        ]
    reply.logprobs = [float(entry[0]) for entry in logprobs]


def _abort(side: Side, room: int, after: float) -> None:
    time.sleep(after)
    body = json.dumps({"rid": f"room-{room}"}).encode()
    for port in (side.port, PORTS["prefill"]):
        with contextlib.suppress(OSError, urllib.error.URLError, ValueError):
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/abort_request", body, {"Content-Type": "application/json"}
            )
            urllib.request.urlopen(request, timeout=20).read()


def _reset(side: Side) -> None:
    Path(f"{side.probe}.reset").touch()


def _settled(side: Side) -> dict[str, Any]:
    told = two_gpus._settled(side)
    told["pools_whole"] = (
        told["swa_free"] == told["swa_size"]
        and told["full_free"] == told["full_size"]
        and told["still_mapped"] == 0
    )
    return told


if __name__ == "__main__":
    sys.exit(main())
