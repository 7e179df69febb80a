"""Prefixes that come back from the host, by how its memory is divided: Engines that take turns.

    python tests/benchmarks/mamba/host.py OUT.json [SIDE …]

Boots an Engine for each side, and one without any cache (`reference`). Sides are `stock` and
`patched`, which is ``mamba.host-states``: one Engine that is told the tokens per state of prompts
of 2,040 tokens, and one of prompts of 16,300 (`TOLD`). All have the hierarchical cache with the
release's defaults and HOST_GB (18) for it, dummy weights of `gdn-24`, and DEVICE_GIB (6) for states
and KV on the device, divided as stock does by default.

Unique prompts fill the caches until the device has given most of them up. The newest ones come
again while it has them. Then all come, one at a time: in the same order, then in a random one, then
each twice at the same moment. For each class of hits (device, host, none): how many, the first
token's median and 99th percentile, and how many replies, of greedy tokens, equal those of the first
pass, those of the Engine without a cache, and those that the device's own states gave. A hit
computes another chunk than a whole prompt, so that the first two may differ by rounding; the last
must not. The sides take turns, load by load, while the processes of the others are stopped, until
LIMIT_S (480). OUT.json is rewritten after each part. Run it with the release, its packages and
``src`` on PYTHONPATH.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE.parent / "rig"))

import fleet  # noqa: E402
import shapes  # noqa: E402
from engine import Server, parsed, patches_here  # noqa: E402

from sglang_perf_patches.cli.sizing import split as state_split  # noqa: E402

SHAPE = os.environ.get("SHAPE", "gdn-24")
DEVICE_GIB = float(os.environ.get("DEVICE_GIB", "6"))
HOST_GB = int(os.environ.get("HOST_GB", "18"))
LIMIT_S = float(os.environ.get("LIMIT_S", "480"))
BOOT_S = float(os.environ.get("BOOT_S", "230"))
REPLY = int(os.environ.get("REPLY", "8"))
CHUNK = 8192
"""Tokens of a prefill. As many prompts are sent at once as it has room for, where nothing is timed:
of one that it cuts, another state would be kept."""

NEWEST = 12

LOADS: dict[str, tuple[int, int]] = {
    name: (int(count), int(length))
    for name in os.environ.get("LOADS", "260x2040 60x16300 120x2040").split()
    for count, length in [name.split("x")]
}
"""Prompts of a load, and tokens of each: no whole pages, so that a cached one can be found."""

TOLD = {2040: 2040, 16300: 8150}
"""Tokens of a prompt → of KV for each state: a state is kept of each prefill chunk."""

COMMON = [
    *("context_length=20000", "max_running_requests=8", "mem_fraction_static=0.9"),
    *("enable_cache_report=true", "cuda_graph_bs=[1,2,4,8]", "cuda_graph_max_bs=8"),
]
HOSTED = ["enable_hierarchical_cache=true", f"hicache_size={HOST_GB}"]
DEVICE = os.environ.get("OPTIONS", "").split()

GPUS = os.environ.get("GPUS", "").split()
"""The GPU of each boot, in order; without any, the first one is everybody's."""


def plans(names: Sequence[str]) -> list[dict[str, Any]]:
    """The figures of all boots, the Engine without a cache first."""
    boots = [{"name": "reference", "options": ["disable_radix_cache=true"], "env": {}}]
    for name in names:
        if name == "stock":
            boots.append({"name": name, "options": HOSTED, "env": {}})
            continue
        for length in dict.fromkeys(length for _, length in LOADS.values()):
            told = {"SGLANG_PERF_PATCHES_TOKENS_PER_STATE": str(TOLD.get(length, length))}
            boots.append(
                {
                    "name": f"{name}-{length}",
                    "options": HOSTED,
                    "env": told,
                    "patches": "mamba.host-states",
                }
            )
    return boots


def pools() -> list[str]:
    """The device's, divided as stock does by default; given, because Engines boot side by side."""
    cells = state_split.cells_of(shapes.SHAPES[SHAPE].config)
    assert cells is not None
    load = state_split.Load(8, 2048)
    split = state_split.stock(cells, load, available=int(DEVICE_GIB * 2**30), slots_each=5)
    return [f"max_mamba_cache_size={split.slots}", f"max_total_tokens={split.tokens // 64 * 64}"]


def on_a_gpu(plan: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The boot of that number, on the GPU that `GPUS` names for it."""
    gpu = {"CUDA_VISIBLE_DEVICES": GPUS[number % len(GPUS)]} if GPUS else {}
    return {**plan, "env": {**plan["env"], **gpu}}


class Boot(fleet.Boot):
    """An Engine in a process of its own."""

    script = __file__

    def __init__(self, plan: Mapping[str, Any], folder: Path) -> None:
        """Start to boot."""
        options = [*COMMON, *pools(), *DEVICE, *plan["options"]]
        super().__init__({**plan, "group": "", "options": options}, folder)

    def said(self) -> dict[str, Any]:
        """What its log says of the host's pools too."""
        text = self._log.read_text(errors="replace")
        kept = r"[^\n]*(?:host memory|host-states|host pool|max_total_num_tokens)[^\n]*"
        return {**super().said(), "host": [line[-300:] for line in re.findall(kept, text)][:12]}

    def serves(self, length: int) -> bool:
        """Whether this side is for prompts of that length."""
        return "-" not in self.name or self.name.endswith(f"-{length}")


def main(out: Path, names: Sequence[str]) -> None:
    """Boot, take turns; write `out` after each part."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no Engine stays behind
    began = time.monotonic()
    folder = out.parent / f"{out.stem}-logs"
    folder.mkdir(parents=True, exist_ok=True)
    boots = [Boot(on_a_gpu(plan, number), folder) for number, plan in enumerate(plans(names))]
    result: dict[str, Any] = {"GiB": DEVICE_GIB, "host GB": HOST_GB, "shape": SHAPE, "parts": []}
    replies: dict[str, Any] = {}

    def write() -> None:
        result["boots"] = {boot.name: boot.found for boot in boots}
        out.write_text(json.dumps(result, indent=1) + "\n")

    def part(boot: Boot, load: str, what: str) -> list[Any] | None:
        left = LIMIT_S - (time.monotonic() - began)
        if left < 5:
            return None
        started = time.monotonic()
        answers: list[Any] | None = boot.ask(what, *LOADS[load], seconds=left)
        line: dict[str, Any] = {"side": boot.name, "load": load, "part": what}
        if answers is not None:
            known = (f"{boot.name} {load}", f"no cache {load}", f"{boot.name} {load} newest")
            line |= judged(answers, *map(replies.get, known))
        line["seconds"] = round(time.monotonic() - started, 1)
        result["parts"].append(line)
        print(json.dumps(line), flush=True)
        write()
        return answers

    try:
        up = fleet.booted(boots, began + BOOT_S)
        write()
        reference = [boot for boot in up if boot.name == "reference"]
        for load, (_, length) in LOADS.items():
            for boot in reference:
                replies[f"no cache {load}"] = tokens(part(boot, load, "fill"))
            sides = [boot for boot in up if boot not in reference and boot.serves(length)]
            for boot in sides:
                replies[f"{boot.name} {load}"] = tokens(part(boot, load, "fill"))
            for boot in sides:
                replies[f"{boot.name} {load} newest"] = tokens(part(boot, load, "newest"))
            for what in ("in order", "at random", "twice"):
                for boot in sides:
                    part(boot, load, what)
    finally:
        for boot in boots:
            boot.kill()
        write()


Reply = Mapping[str, Any]
"""A request: its ``number``, ``first`` token in ms, cached tokens by source, and ``tokens``."""


def tokens(said: Sequence[Reply] | None) -> dict[int, Any]:
    """The requests of a part, by number."""
    return {each["number"]: each["tokens"] for each in said or ()}


def judged(
    said: Sequence[Reply],
    before: Mapping[int, Any] | None,
    without: Mapping[int, Any] | None,
    device: Mapping[int, Any] | None,
) -> dict[str, Any]:
    """What a part found, by class of hits.

    Args:
        said: of each request.
        before: tokens of the first pass.
        without: tokens of the Engine without a cache.
        device: tokens of prompts that went on from the device.
    """
    classes: dict[str, list[Reply]] = {"device": [], "host": [], "none": []}
    for each in said:
        where = "host" if each["host"] else "device" if each["device"] else "none"
        classes[where].append(each)
    figures: dict[str, Any] = {"requests": len(said)}
    for name, members in classes.items():
        if not members:
            figures[name] = {"count": 0}
            continue
        firsts = sorted(each["first"] for each in members)
        figures[name] = {
            "count": len(members),
            "first ms": round(statistics.median(firsts), 1),
            "p99 ms": round(firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))], 1),
            "cached": round(statistics.mean(each["device"] + each["host"] for each in members)),
            "as before": _equal(members, before),
            "as without a cache": _equal(members, without),
            "as on the device": _equal(
                [each for each in members if each["number"] in (device or {})], device
            ),
        }
    figures["first ms"] = round(statistics.median(each["first"] for each in said), 1)
    return figures


def _equal(members: Sequence[Reply], others: Mapping[int, Any] | None) -> list[int]:
    """How many whole replies are equal, how many first tokens, and of how many."""
    pairs = [(each["tokens"], (others or {}).get(each["number"])) for each in members]
    return [
        sum(one == other for one, other in pairs),
        sum(bool(one and other) and one[0] == other[0] for one, other in pairs),
        len(pairs),
    ]


class Seat:
    """One Engine, in this process, which does as told."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        """Boot it, and have kernels compile for lengths that come."""
        options, model = parsed(plan["options"])
        self.server = Server(SHAPE, options, model)
        for length in dict.fromkeys(length for _, length in LOADS.values()):
            for at_once in (max(1, CHUNK // length), 1, 1):
                prompts = self._prompts(at_once, length, "warm")
                self._send(list(enumerate(prompts)), at_once)

    def fill(self, count: int, length: int) -> list[Reply]:
        """Empty the caches and send all prompts for the first time."""
        self.server.flush()
        return self._send(self._numbered(count, length), max(1, CHUNK // length))

    def newest(self, count: int, length: int) -> list[Reply]:
        """Send again what the device still has: it has room for 16 of the longest."""
        return self._send(self._numbered(count, length)[-NEWEST:], 1)

    def in_order(self, count: int, length: int) -> list[Reply]:
        """Send all again, one at a time."""
        return self._send(self._numbered(count, length), 1)

    def at_random(self, count: int, length: int) -> list[Reply]:
        """The same in a random order."""
        numbered = self._numbered(count, length)
        random.Random(count).shuffle(numbered)
        return self._send(numbered, 1)

    def twice(self, count: int, length: int) -> list[Reply]:
        """The older half again, each twice at the same moment; nothing is timed well here."""
        numbered = self._numbered(count, length)[: max(1, count // 2)]
        return self._send([each for each in numbered for _ in range(2)], 2)

    def patches(self) -> dict[str, Any]:
        """Which ran, and which stayed out."""
        return {"patches": patches_here()}

    def _numbered(self, count: int, length: int) -> list[tuple[int, list[int]]]:
        return list(enumerate(self._prompts(count, length, "load")))

    def _prompts(self, count: int, length: int, what: str) -> list[list[int]]:
        self.server.seed(f"{what} {length}")
        return self.server.prompts(count, length)

    def _send(self, numbered: Sequence[tuple[int, list[int]]], at_once: int) -> list[Reply]:
        """Send prompts, so many at once; what came of each."""
        sampling = {"temperature": 0, "max_new_tokens": REPLY, "ignore_eos": True}
        replies: list[Reply] = []

        async def one(number: int, ids: list[int]) -> None:
            sent, first = time.perf_counter(), None
            reply: dict[str, Any] = {}
            got: list[int] = []
            answers = await self.server.engine.async_generate(
                input_ids=ids, sampling_params=sampling, stream=True
            )
            async for answer in answers:
                first = first or time.perf_counter() - sent
                reply, ids_now = answer, list(answer.get("output_ids", ()))
                # Releases stream all tokens so far, or the new ones.
                got = ids_now if len(ids_now) > len(got) else got + ids_now
            about = reply.get("meta_info", {})
            where = about.get("cached_tokens_details") or {}
            replies.append(
                {
                    "number": number,
                    "first": round(1e3 * (first or float("nan")), 2),
                    "device": where.get("device", 0) if where else about.get("cached_tokens", 0),
                    "host": where.get("host", 0),
                    "tokens": got[-REPLY:],
                }
            )

        async def all_of_them() -> None:
            for start in range(0, len(numbered), at_once):
                await asyncio.gather(*(one(*each) for each in numbered[start : start + at_once]))

        self.server.engine.loop.run_until_complete(all_of_them())
        return replies


def seat(replies: str, plan: Mapping[str, Any]) -> None:
    """Boot one Engine, then answer until standard input ends."""

    def boot() -> tuple[Server, dict[str, Any], fleet.Does]:
        mine = Seat(plan)
        does = {
            "fill": mine.fill,
            "newest": mine.newest,
            "in order": mine.in_order,
            "at random": mine.at_random,
            "twice": mine.twice,
        }
        return mine.server, mine.patches(), does

    fleet.answer_until_end(replies, boot)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if sys.argv[1] == "seat":
        seat(sys.argv[2], json.loads(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), sys.argv[2:] or ["stock", "patched"])
