"""Requests that are sent to a decode server at once, and what came of them."""

from __future__ import annotations

import contextlib
import json
import statistics
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import two_gpus
from two_gpus import PORTS, Side


@dataclass
class Reply:
    """What came of one request, with the seconds until its first token."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    first: float | None = None
    ended: str = ""

    def equals(self, other: Reply) -> bool:
        """Whether tokens and log-probabilities are the same, bit by bit."""
        return self.tokens == other.tokens and self.logprobs == other.logprobs


def _summary(replies: Sequence[Reply]) -> dict[str, Any]:
    firsts = [reply.first for reply in replies if reply.first is not None]
    return {
        "finished": sum(reply.ended == "length" for reply in replies),
        "ended": dict(Counter(reply.ended for reply in replies)),
        "ttft_median_s": round(statistics.median(firsts), 3) if firsts else None,
        "ttft_last_s": round(max(firsts), 3) if firsts else None,
    }


def _equal(first: Sequence[Reply], second: Sequence[Reply]) -> int:
    return sum(a.equals(b) for a, b in zip(first, second, strict=True))


@dataclass
class _Burst:
    """Requests that were sent at once."""

    replies: list[Reply]
    threads: list[threading.Thread]

    def ended(self, within: float = 160.0) -> list[Reply]:
        """The replies, once all have ended; those that have not in their time say so."""
        until = time.monotonic() + within
        for thread in self.threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))
        return self.replies


def _start(
    side: Side, prompts: Sequence[list[int]], output: int, aborted: Collection[int] = ()
) -> _Burst:
    """Send all at once; abort some while they wait or are in transfer."""
    burst = _Burst([Reply() for _ in prompts], [])

    def start(function: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        return thread

    for number, ids in enumerate(prompts):
        room = next(two_gpus.ROOMS)
        # Nobody waits for the prefill server: what the decode server refuses, it keeps for long.
        start(_prefill, ids, output, room)
        burst.threads.append(start(_decode, side, ids, output, room, burst.replies[number]))
        if number in aborted:
            burst.threads.append(start(_abort, side, room, 0.02 + 0.9 * (number / len(prompts))))
    return burst


def _body(ids: list[int], output: int, room: int, **more: Any) -> bytes:
    sampling = {"temperature": 0, "max_new_tokens": output, "ignore_eos": True}
    named = {
        "rid": f"room-{room}",
        "input_ids": ids,
        "sampling_params": sampling,
        "return_logprob": True,
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": two_gpus.BOOTSTRAP,
        "bootstrap_room": room,
    }
    return json.dumps(named | more).encode()


def _prefill(ids: list[int], output: int, room: int) -> None:
    with contextlib.suppress(OSError, urllib.error.URLError, ValueError):
        two_gpus.post(PORTS["prefill"], _body(ids, output, room))


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
    if not chunks or reply.ended:
        reply.ended = reply.ended or "empty"
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
