"""Requests in flight, by how a hybrid model's memory is split: Engines that take turns on one GPU.

    python tests/benchmarks/mamba/split.py OUT.json [SIDE …]

Boots an Engine for each side (`sides`: stock's defaults, stock with another number of state slots,
and with two of its switches besides; more by name). All have the same bytes for states and KV, and
dummy weights of Qwen3.5-35B-A3B's dimensions, with LAYERS of its 40 layers (12) and as much of
GIB (34). CLIENTS (256) clients send a prompt when they have the reply to the last one. The sides
take turns, load by load, while the processes of the others are stopped, until LIMIT_S (440).
LOADS names the loads (`ALL_LOADS`), with commas between, and CONTEXT (4096) is what the sides are
fitted to.

OUT.json is rewritten after each load: for each side requests in flight (mean and most, over decode
steps), tokens a second, the first token's median and 99th percentile, cached tokens, retractions,
and what was free at the least. Run it with the release, its packages and ``src`` on PYTHONPATH.
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
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE.parent / "rig"))

import fleet  # noqa: E402
import shapes  # noqa: E402
from engine import Server, parsed  # noqa: E402

from sglang_perf_patches.cli.sizing import split as state_split  # noqa: E402

SHAPE = "qwen-35b-a3b"
LAYERS = int(os.environ.get("LAYERS", "12"))
GIB = float(os.environ.get("GIB", "34")) * LAYERS / 40
CLIENTS = int(os.environ.get("CLIENTS", "256"))
EACH = int(os.environ.get("EACH", "2"))
LIMIT_S = float(os.environ.get("LIMIT_S", "440"))
BOOT_S = float(os.environ.get("BOOT_S", "200"))
CONTEXT = int(os.environ.get("CONTEXT", "4096"))
ALL_LOADS: dict[str, tuple[int, int, int]] = {
    "4k unique": (0, 3840, 256),
    "1k unique": (0, 768, 256),
    "4k shared": (3072, 768, 256),
    "16k unique": (0, 15360, 256),
    "16k shared": (12288, 3072, 256),
}
"""Tokens of a prefix that all prompts share, of the rest of a prompt, and of a reply."""
LOADS = {
    name: ALL_LOADS[name]
    for name in os.environ.get("LOADS", "4k unique,1k unique,4k shared").split(",")
}
COMMON = [
    *("context_length=32768", "max_running_requests=256", "mem_fraction_static=0.25"),
    *("cuda_graph_bs_prefill=[160,576,4096]", "stream_interval=16"),
]
SKIP = {"SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK": "1"}
LAZY = "mamba_radix_cache_strategy=extra_buffer_lazy"


def shape() -> dict[str, Any]:
    """The model's configuration, cut."""
    whole = shapes.SHAPES[SHAPE].config
    kinds = whole["layer_types"][:LAYERS]
    return {**whole, "num_hidden_layers": LAYERS, "layer_types": kinds}


def sides() -> dict[str, dict[str, Any]]:
    """Plans of boots by name: options and variables of the environment."""
    cells = state_split.cells_of(shape())
    assert cells is not None
    load = state_split.Load(CLIENTS, CONTEXT)

    def slots(each: int) -> str:
        split = state_split.fitted(cells, load, available=int(GIB * 2**30), slots_each=each)
        return f"max_mamba_cache_size={split.slots}"

    return {
        "stock": {"options": [], "env": {}},
        "number": {"options": [slots(5)], "env": {}},
        "skip": {"options": [slots(4)], "env": SKIP},
        "lazy": {"options": [slots(4), LAZY], "env": {}},
        "switches": {"options": [slots(3), LAZY], "env": SKIP},
        "unified": {
            "options": [slots(3), LAZY, "enable_unified_memory=true"],
            "env": SKIP,
        },
        "no-cache": {"options": [slots(1), "disable_radix_cache=true"], "env": {}},
    }


class Boot(fleet.Boot):
    """An Engine in a process of its own, with the probe."""

    script = __file__

    def __init__(self, plan: Mapping[str, Any], folder: Path) -> None:
        """Start to boot."""
        self.probe = folder / f"{plan['name']}.probe"
        budget = {"STATE_BYTES": str(int(GIB * 2**30)), "STATE_PROBE": str(self.probe)}
        env = {**plan["env"], **budget, "DUMMY_WEIGHTS": ""}  # tokens are not looked at
        super().__init__({**plan, "env": env, "path": str(_HERE / "held")}, folder)

    def counted(self) -> dict[str, Any]:
        """What its batches held since the last reset."""
        time.sleep(0.5)
        seen = dict(json.loads(self.probe.read_text())) if self.probe.exists() else {}
        if seen.get("steps"):
            seen["mean_running"] = round(seen["sum_running"] / seen["steps"], 1)
        return seen


def main(out: Path, names: list[str]) -> None:
    """Boot, take turns; write `out` after each load."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no Engine stays behind
    began = time.monotonic()
    folder = out.parent / f"{out.stem}-logs"
    folder.mkdir(parents=True, exist_ok=True)
    known = sides()
    cut = [f"model.num_hidden_layers={LAYERS}"]
    boots = []
    for name in names:
        plan = known[name]
        options = [*COMMON, *cut, *plan["options"]]
        boots.append(Boot({**plan, "name": name, "group": "", "options": options}, folder))
    result: dict[str, Any] = {"layers": LAYERS, "GiB": GIB, "clients": CLIENTS, "loads": []}

    def write() -> None:
        result["boots"] = {boot.name: boot.found for boot in boots}
        out.write_text(json.dumps(result, indent=1) + "\n")

    try:
        up = fleet.booted(boots, began + BOOT_S)
        write()
        longest = 0.0
        for number in range(9):
            for load, lengths in LOADS.items():
                for boot in up if number % 2 == 0 else up[::-1]:
                    left = LIMIT_S - (time.monotonic() - began)
                    if left < longest:
                        return
                    started = time.monotonic()
                    Path(f"{boot.probe}.reset").touch()
                    told = boot.ask("load", *lengths, number, seconds=left)
                    counted = boot.counted()
                    line = {"side": boot.name, "load": load, "round": number, **(told or {})}
                    result["loads"].append(line | counted)
                    print(json.dumps(line | counted), flush=True)
                    write()
                    longest = max(longest, time.monotonic() - started)
    finally:
        for boot in boots:
            boot.kill()
        write()


def seat(replies: str, plan: Mapping[str, Any]) -> None:
    """Boot one Engine, then answer until standard input ends."""

    def boot() -> tuple[Server, dict[str, Any], fleet.Does]:
        options, model = parsed(plan["options"])
        server = Server(SHAPE, options, model)
        loaded(server, 64, 2000, 32, -1, clients=min(32, CLIENTS), each=1)  # kernels compile
        if not Path(plan["env"]["STATE_PROBE"]).exists():
            raise RuntimeError("the probe is not in the scheduler")
        return server, pools(server), {"load": partial(loaded, server)}

    fleet.answer_until_end(replies, boot)


def pools(server: Server) -> dict[str, Any]:
    """What the server says of its pools, by the names of the release."""
    told = server.engine.get_server_info()
    inner = (told.get("internal_states") or [{}])[0]
    names = (
        "max_mamba_cache_size",
        "max_total_num_tokens",
        "effective_max_running_requests_per_dp",
    )
    return {name: told.get(name, inner.get(name)) for name in names}


def loaded(
    server: Server,
    prefix: int,
    rest: int,
    reply: int,
    number: int,
    *,
    clients: int = CLIENTS,
    each: int = EACH,
) -> dict[str, Any]:
    """Send a load: each client so many prompts, one after the other; lengths vary by a quarter."""
    draw = random.Random(f"{prefix} {rest} {reply} {number}")

    def tokens(count: int) -> list[int]:
        return [draw.randrange(10, 30000) for _ in range(count)]

    def about(count: int) -> int:
        return int(count * draw.uniform(0.75, 1.25))

    common = tokens(prefix)
    asked = [
        [(common + tokens(about(rest)), about(reply)) for _ in range(each)] for _ in range(clients)
    ]
    firsts: list[float] = []
    replied, cached = [0], [0]

    async def client(prompts: list[tuple[list[int], int]]) -> None:
        for ids, new in prompts:
            sampling = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True}
            sent = time.perf_counter()
            answers = await server.engine.async_generate(
                input_ids=ids, sampling_params=sampling, stream=True
            )
            first, told = None, {}
            async for answer in answers:
                first = first or time.perf_counter() - sent
                told = answer["meta_info"]
            firsts.append(first or float("nan"))
            replied[0] += told.get("completion_tokens", 0)
            cached[0] += told.get("cached_tokens", 0)

    async def together() -> None:
        await asyncio.gather(*(client(prompts) for prompts in asked))

    began = time.perf_counter()
    server.engine.loop.run_until_complete(together())
    seconds = time.perf_counter() - began
    prompt_tokens = sum(len(ids) for prompts in asked for ids, _ in prompts)
    return {
        "requests": clients * each,
        "seconds": round(seconds, 2),
        "reply tokens/s": round(replied[0] / seconds, 1),
        "all tokens/s": round((replied[0] + prompt_tokens) / seconds, 1),
        "first median s": round(statistics.median(firsts), 3),
        "first p99 s": round(statistics.quantiles(firsts, n=100)[98], 3),
        "cached of prompt": round(cached[0] / prompt_tokens, 3),
    }


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if sys.argv[1] == "seat":
        seat(sys.argv[2], json.loads(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), sys.argv[2:] or ["stock", "number", "switches"])
