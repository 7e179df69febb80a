"""A window pool for Gemma 3: one Engine on each of two GPUs, then the other way round.

    python tests/benchmarks/swa/window_pool.py OUT.json stock patched

Boots `stock` on the first GPU and `patched` on the second at once, with the dimensions of
Gemma-3-12B (SHAPE=gemma; gemma-27b) and dummy weights, and the release's defaults but for
``--max-running-requests``, which both have. Both get the same: first prompts one by one, of which
tokens and log-probabilities are to be equal bit by bit, then COUNT (64) prompts of LENGTH (16000)
tokens at once, each for REPLY (256) tokens. Then all ends, and boots again with the GPUs exchanged.

OUT.json is rewritten after each part: what each boot's pools hold, seconds, tokens a second, the
first token's median and 99th percentile, requests in a decode step (mean and most), retractions,
and how much is equal between the sides of a round. It stops with what it has after LIMIT_S (540).
RUNNING (20), OPTIONS (``NAME=VALUE``, with blanks between) and GPUS ("0 1"; "" for none) say how
they are booted. Run it with the release, its packages and ``src`` on PYTHONPATH.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE.parent / "rig"))

import fleet  # noqa: E402
from engine import Server, parsed, patches_here  # noqa: E402

SHAPE = os.environ.get("SHAPE", "gemma")
RUNNING = os.environ.get("RUNNING", "20")
OPTIONS = os.environ.get("OPTIONS", "").split()
GPUS = os.environ.get("GPUS", "0 1").split()
COUNT = int(os.environ.get("COUNT", "64"))
LENGTH, REPLY = int(os.environ.get("LENGTH", "16000")), int(os.environ.get("REPLY", "256"))
LIMIT_S = float(os.environ.get("LIMIT_S", "540"))
BOOT_S = float(os.environ.get("BOOT_S", "200"))
ALONE = tuple(map(int, os.environ.get("ALONE", "100 700 1023 1024 1025 2500 4000 6000").split()))
SAID = 32
"""Tokens of a reply of those."""
PATCHES = {"stock": "none", "patched": "swa.window-pool,swa.pool-ratio"}
USUAL = (f"max_running_requests={RUNNING}", "cuda_graph_max_bs=32", "context_length=32768")

Told = dict[str, Any]


class Boot(fleet.Boot):
    """An Engine in a process of its own, on one GPU, with the probe."""

    script = __file__

    def __init__(self, side: str, number: int, gpu: str | None, folder: Path) -> None:
        """Start to boot."""
        self.probe = folder / f"{side}-{number}.probe"
        self.side = side
        plan = {
            "name": f"{side}-{number}",
            "group": str(number),
            "patches": PATCHES[side],
            "options": [*USUAL, *OPTIONS],
            "env": {
                "SWA_POOL_PROBE": str(self.probe),
                **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}),
            },
            "path": str(_HERE / "probe"),
        }
        super().__init__({**plan, "GPU": gpu}, folder)

    def begin(self, *words: Any) -> None:
        """Have it do something; `answer` has what comes of it."""
        assert self._process.stdin is not None
        self.rest(False)
        self._process.stdin.write((json.dumps(words) + "\n").encode())
        self._process.stdin.flush()


def main(out: Path, sides: Sequence[str]) -> int:
    """Two rounds; write `out` after each part. 1 if an Engine did not boot or answer."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no Engine stays behind
    began = time.monotonic()
    folder = out.parent / f"{out.stem}-logs"
    folder.mkdir(parents=True, exist_ok=True)
    result: Told = {"shape": SHAPE, "load": [COUNT, LENGTH, REPLY], "boots": {}, "rounds": []}

    def write() -> None:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    def left() -> float:
        return LIMIT_S - (time.monotonic() - began)

    whole = True
    for number in (1, 2):
        gpus: list[str | None] = [*GPUS] or [None, None]
        boots = [
            Boot(side, number, gpu, folder)
            for side, gpu in zip(sides, gpus if number == 1 else gpus[::-1], strict=False)
        ]
        try:
            up = fleet.booted(boots, time.monotonic() + min(BOOT_S, max(1.0, left())))
            result["boots"] |= {boot.name: boot.found for boot in boots}
            write()
            whole &= len(up) == len(sides)
            told: Told = {}
            result["rounds"].append(told)
            for part in ("alone", "load"):
                given = _at_once(up, part, number, left)
                whole &= all(given.values())
                told[part] = {side: _without_replies(one) for side, one in given.items()}
                told[part]["equal"] = _equal(list(given.values()))
                print(number, part, json.dumps(told[part]), flush=True)
                write()
        finally:
            for boot in boots:
                boot.kill()
    return 0 if whole else 1


def _at_once(boots: Sequence[Boot], part: str, number: int, left: Any) -> dict[str, Told]:
    """What each side makes of a part, all at the same time; without what does not come in time."""
    for boot in boots:
        Path(f"{boot.probe}.reset").touch()
        boot.begin(part, number)
    runs = {}
    for boot in boots:
        told = boot.answer(max(1.0, left()))
        time.sleep(0.3)
        counted = json.loads(boot.probe.read_text()) if boot.probe.exists() else {}
        if counted.get("steps"):
            counted["mean_running"] = round(counted.pop("sum_running") / counted["steps"], 2)
        runs[boot.side] = {**told, **counted} if told else {}
        if not told:
            print(boot.name, "did not answer:", boot.found.get("error"), flush=True)
    return runs


def _without_replies(told: Told) -> Told:
    return {name: value for name, value in told.items() if name != "replies"}


def _equal(sides: Sequence[Told]) -> Told:
    """Of replies of tokens, and of their log-probabilities where there are any."""
    replies = [each["replies"] for each in sides if each]
    if len(replies) < 2:
        return {}
    pairs = list(zip(*replies, strict=True))
    tokens = [(one["tokens"], other["tokens"]) for one, other in pairs]
    shared = [
        next((n for n, (a, b) in enumerate(zip(*pair, strict=True)) if a != b), len(pair[0]))
        for pair in tokens
    ]
    equality: Told = {
        "replies": len(pairs),
        "equal tokens": sum(a == b for a, b in tokens),
        "first tokens equal": sum(a[0] == b[0] for a, b in tokens),
        "equal from the start, median": statistics.median(shared),
        "different tokens": len({token for a, _ in tokens for token in a}),
    }
    if "logprobs" in pairs[0][0]:
        equality["bit-equal logprobs"] = sum(a["logprobs"] == b["logprobs"] for a, b in pairs)
        apart = [
            abs(x - y)
            for one, other in pairs
            for s, t, x, y in zip(
                *(one["tokens"], other["tokens"], one["logprobs"], other["logprobs"]), strict=True
            )
            if s == t
        ]
        equality["largest difference"] = max(apart, default=None)
    return equality


def seat(replies: str, plan: Mapping[str, Any]) -> None:
    """Boot one Engine, then answer until standard input ends."""

    def boot() -> tuple[Server, Told, fleet.Does]:
        options, model = parsed(plan["options"])
        server = Server(SHAPE, options, model)
        warm = server.prompts(8, min(LENGTH, 2000))
        server.generate(warm, 16)  # kernels compile
        server.flush()
        return (
            server,
            {"pools": pools(server), "patches": patches_here()},
            {"alone": partial(alone, server), "load": partial(loaded, server)},
        )

    fleet.answer_until_end(replies, boot)


def pools(server: Server) -> Told:
    """What the server says of its pools and requests."""
    told = server.engine.get_server_info()
    inner = (told.get("internal_states") or [{}])[0]
    names = ("max_total_num_tokens", "effective_max_running_requests_per_dp")
    asked = ("attention_backend", "page_size", "chunked_prefill_size", "mem_fraction_static")
    return {name: told.get(name, inner.get(name)) for name in (*names, *asked)}


def alone(server: Server, number: int) -> Told:
    """Prompts one by one: tokens and log-probabilities of each reply."""
    server.seed(f"alone {number}")
    replies = []
    sampling = {"temperature": 0, "max_new_tokens": SAID, "ignore_eos": True}
    for length in ALONE:
        (prompt,) = server.prompts(1, length)
        reply = server.engine.generate(
            input_ids=prompt, sampling_params=sampling, return_logprob=True
        )
        told = reply["meta_info"]["output_token_logprobs"]
        replies.append({"tokens": [one[1] for one in told], "logprobs": [one[0] for one in told]})
    # The longest once more, which the cache has.
    reply = server.engine.generate(input_ids=prompt, sampling_params=sampling, return_logprob=True)
    told = reply["meta_info"]["output_token_logprobs"]
    replies.append({"tokens": [one[1] for one in told], "logprobs": [one[0] for one in told]})
    cached = reply["meta_info"].get("cached_tokens")
    server.flush()
    return {"replies": replies, "cached of the last": cached}


def loaded(server: Server, number: int) -> Told:
    """Unlike prompts at once: seconds, first tokens, and the replies."""
    draw = random.Random(f"load {number}")
    asked = [
        [draw.randrange(10, min(server.words, 200_000)) for _ in range(LENGTH)]
        for _ in range(COUNT)
    ]
    sampling = {"temperature": 0, "max_new_tokens": REPLY, "ignore_eos": True}
    firsts: list[float] = [float("nan")] * COUNT
    ends: list[float] = [float("nan")] * COUNT
    replies: list[Told] = [{"tokens": []}] * COUNT

    async def one(place: int) -> None:
        stream = await server.engine.async_generate(
            input_ids=asked[place], sampling_params=sampling, stream=True
        )
        last: Told = {}
        tokens: list[int] = []
        async for last in stream:
            if not tokens:
                firsts[place] = time.perf_counter() - began
            given = list(last.get("output_ids") or ())
            # Some releases tell all tokens so far, others those that are new.
            whole = len(given) == last["meta_info"]["completion_tokens"]
            tokens = given if whole else tokens + given
        ends[place] = time.perf_counter() - began
        replies[place] = {"tokens": tokens}

    async def together() -> None:
        await asyncio.gather(*(one(place) for place in range(COUNT)))

    began = time.perf_counter()
    server.engine.loop.run_until_complete(together())
    seconds = time.perf_counter() - began
    return {
        "seconds": round(seconds, 2),
        "reply tokens/s": round(COUNT * REPLY / seconds, 1),
        "all tokens/s": round(COUNT * (REPLY + LENGTH) / seconds, 1),
        "first median s": round(statistics.median(firsts), 3),
        "first p99 s": round(max(statistics.quantiles(firsts, n=100)[98], max(firsts[:1])), 3),
        "last of median s": round(statistics.median(ends), 3),
        "patches": patches_here(),
        "replies": replies,
    }


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if sys.argv[1:2] == ["seat"]:
        seat(sys.argv[2], json.loads(sys.argv[3]))
    elif len(sys.argv) > 2:
        sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
    else:
        sys.exit(__doc__)
