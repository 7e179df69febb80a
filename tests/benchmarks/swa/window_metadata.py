"""Time per token with Triton attention and a window pool: stock and patched by turns.

    python tests/benchmarks/swa/window_metadata.py OUT.json

RELEASES names folders to be put in front of PYTHONPATH, one for each of the GPUS ("0 1"), with
blanks between: another sglang each. On each GPU several Engines boot at once, with gpt-oss-20b's
dimensions and dummy weights: ``mxfp4`` as it is published, ``bfloat16``, and ``as-mxfp4`` with 8 of
its 32 experts in bfloat16, which are as many bytes as all of them in MXFP4. ENGINES
("mxfp4,as-mxfp4 as-mxfp4,bfloat16") says which ones, for each GPU. One of them measures at a time,
the others are stopped; the GPUs measure side by side.

In each turn the same prompts are sent, BATCHES ("16 32 64") of PROMPT (200) tokens for TOKENS (256)
tokens each. Their prefill is done before, so that the time is that of decode steps. Then, from a
profile of each side, of each decode step: calls of the runtime, waits, copies to the host, and
which part of the time the GPU has nothing to do.

OUT.json is rewritten after each part. ROUNDS (4) count after one that does not; nothing begins
after LIMIT_S (285), boots may take BOOT_S (200). OPTIONS (``NAME=VALUE``, with blanks between) are
given to all Engines. The packages of the newest release and ``src`` are on PYTHONPATH: what an
older release imports of them and they no longer have is stood in for (``beside_newer/``).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE.parent / "rig"))

import fleet  # noqa: E402
import traces  # noqa: E402
import turns  # noqa: E402
from engine import Replies, Server, parsed, patches_here, quartiles  # noqa: E402

PATCH = os.environ.get("PATCH", "swa.window-metadata")
RELEASES = os.environ.get("RELEASES", "").split()
GPUS = os.environ.get("GPUS", "0 1").split()
SHAPE = os.environ.get("SHAPE", "gpt-oss")
ENGINES = [
    names.split(",")
    for names in os.environ.get("ENGINES", "mxfp4,as-mxfp4 as-mxfp4,bfloat16").split()
]
OPTIONS = os.environ.get("OPTIONS", "").split()
BATCHES = tuple(map(int, os.environ.get("BATCHES", "16 32 64").split()))
PROMPT, TOKENS = int(os.environ.get("PROMPT", "200")), int(os.environ.get("TOKENS", "256"))
ROUNDS = int(os.environ.get("ROUNDS", "4"))
LIMIT_S = float(os.environ.get("LIMIT_S", "285"))
BOOT_S = float(os.environ.get("BOOT_S", "200"))
WARM = 1
PROFILED = 64
"""Decode steps of a profile."""
EXPERTS = {
    "mxfp4": ['model.quantization_config={"quant_method": "mxfp4"}', "moe_runner_backend="],
    "as-mxfp4": ["model.num_local_experts=8"],
}
USUAL = (
    "attention_backend=triton",
    "moe_runner_backend=triton",
    "max_total_tokens=60000",
    "mem_fraction_static=0.95",
    f"max_running_requests={max(BATCHES)}",
    f"cuda_graph_max_bs={max(BATCHES)}",
    "disable_piecewise_cuda_graph=true",
)
"""The KV of two Engines must fit on one GPU; graphs of prefills cost a boot half a minute."""

Told = dict[str, Any]


class Boot(fleet.Boot):
    """An Engine in a process of its own, on one GPU."""

    script = __file__

    def __init__(self, engine: str, release: str, gpu: str, folder: Path) -> None:
        """Start to boot."""
        self.gpu = gpu
        path = os.pathsep.join([str(_HERE / "beside_newer"), *filter(None, [release])])
        super().__init__(
            {
                "name": f"{Path(release).name or 'sglang'}-{engine}",
                "group": gpu,
                "patches": PATCH,
                "options": [*USUAL, *EXPERTS.get(engine, []), *OPTIONS],
                "env": {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {},
                "path": path,
            },
            folder,
        )

    def begin(self, *words: Any) -> bool:
        """Have it do something; `answer` has what comes of it. False if it has ended."""
        assert self._process.stdin is not None
        self.rest(False)
        try:
            self._process.stdin.write((json.dumps(words) + "\n").encode())
            self._process.stdin.flush()
        except OSError:
            return False
        return True


def main(out: Path) -> int:
    """Boot, measure part after part; write `out` after each. 1 if something did not come."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no Engine stays behind
    began = time.monotonic()
    folder = out.parent / f"{out.stem}-logs"
    folder.mkdir(parents=True, exist_ok=True)
    boots: list[Boot] = []
    results: Told = {}

    def write() -> None:
        told = {boot.name: boot.found for boot in boots}
        out.write_text(json.dumps({"boots": told, "parts": results}, indent=1) + "\n", "utf-8")

    def left() -> float:
        return LIMIT_S - (time.monotonic() - began)

    try:
        for release, gpu, names in zip(RELEASES or [""], GPUS or [""], ENGINES, strict=False):
            boots += [Boot(name, release, gpu, folder) for name in names]
        up = fleet.booted(boots, began + BOOT_S)
        write()
        queues = [[boot for boot in up if boot.gpu == gpu] for gpu in dict.fromkeys(GPUS or [""])]
        most = max(map(len, queues), default=0)
        for at in range(most):
            side_by_side = [queue[at] for queue in queues if at < len(queue)]
            for part in (*(["turns", count] for count in BATCHES), ["profile", 32]):
                _ask(side_by_side, part, results, left)
                write()
        for at in range(most):
            for count in BATCHES:
                side_by_side = [queue[at] for queue in queues if at < len(queue)]
                _ask(side_by_side, ["profile", count], results, left)
                write()
    finally:
        for boot in boots:
            boot.kill()
    return int(len(up) < len(boots))


def _ask(boots: Sequence[Boot], part: Sequence[Any], found: Told, left: Any) -> None:
    """One part of each of these Engines, all at the same time; no part twice."""
    what, count = part
    key = f"{what} {count}"
    asked = [boot for boot in boots if key not in found.get(boot.name, {}) and left() > 0]
    begun = [boot for boot in asked if boot.begin(what, count)]
    for boot in asked:
        told = boot.answer(max(5.0, left() + 10)) if boot in begun else None
        boot.rest(True)
        found.setdefault(boot.name, {})[key] = told or {"failed": boot.found.get("error")}
        print(boot.name, key, json.dumps(told)[:1500], flush=True)


class Seat:
    """One Engine, in this process."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        """Boot it, and have kernels compiled."""
        options, model = parsed(plan["options"])
        self.server = Server(SHAPE, options, model)
        self.sides = turns.Sides(self.server, ["all"])
        if PATCH not in self.sides.live:
            raise ValueError(f"{PATCH} is not live: {patches_here()}")
        for count in BATCHES:
            self._decode(count, 8)

    def _decode(self, count: int, tokens: int) -> Replies:
        prompts = self.server.prompts(count, PROMPT)
        self.server.generate(prompts, 1)
        return self.server.generate(prompts, tokens)

    def turns(self, count: int) -> Told:
        """Milliseconds of a token of a whole batch, of each side in the same round."""
        taken: dict[str, list[Replies]] = {name: [] for name in self.sides.off}
        for number in range(-WARM, ROUNDS):
            self.server.seed(f"{count} {number}")
            prompts = self.server.prompts(count, PROMPT)
            for name in list(self.sides.off)[:: 1 if number % 2 else -1]:
                self.sides.show(name)
                self.server.generate(prompts, 1)
                replies = self.server.generate(prompts, TOKENS)
                if number >= 0:
                    taken[name].append(replies)
        comparison = turns.compared(taken, lambda one: {"per token": 1e3 * one.seconds / TOKENS})
        return {
            **comparison,
            "tokens equal": turns.same(turns.flat(taken)),
            "patches": patches_here(),
        }

    def profile(self, count: int) -> Told:
        """What each decode step of each side calls and waits for, and how long the GPU rests."""
        profiles: Told = {}
        for name in self.sides.off:
            self.sides.show(name)
            prompts = self.server.prompts(count, PROMPT)
            self.server.generate(prompts, 1)
            events = traces.events(
                self.server,
                lambda: self.server.generate(prompts, PROFILED),  # noqa: B023
                activities=["GPU"],
            )
            profiles[name] = steps(events)
        return profiles


def steps(events: Sequence[traces.Event]) -> Told:
    """Figures of a decode step, from the launches of graphs in the middle of a profile.

    A wait is counted with the milliseconds that it took: a wait for a copy that has ended is none.
    """
    launches = sorted(each["ts"] for each in events if each.get("name") == "cudaGraphLaunch")
    launches = launches[len(launches) // 8 : -max(1, len(launches) // 8)]
    if len(launches) < 3:
        return {"launches of graphs": len(launches), **traces.calls([*events], PROFILED)}
    first, last, count = launches[0], launches[-1], len(launches) - 1
    inside = [each for each in events if first <= each.get("ts", 0) < last]
    gaps = [(b - a) / 1e3 for a, b in pairwise(launches)]
    waited: dict[str, list[float]] = {}
    for each in inside:
        name = str(each.get("name", ""))
        if each.get("cat") in {"cuda_runtime", "cuda_driver"} and "Synchronize" in name:
            waited.setdefault(name, []).append(each.get("dur", 0) / 1e3)
    busy = traces.busy_ms(inside)
    return {
        "steps": count,
        "step ms": quartiles(gaps),
        "idle share": round(1 - busy / ((last - first) / 1e3), 4),
        "waits": {
            name: {"a step": round(len(each) / count, 2), "ms a step": round(sum(each) / count, 3)}
            for name, each in waited.items()
        },
        **traces.calls(inside, count),
    }


def seat(replies: str, plan: Mapping[str, Any]) -> None:
    """Boot one Engine, then answer until standard input ends."""

    def boot() -> tuple[Server, Told, fleet.Does]:
        mine = Seat(plan)
        told = {"patches": patches_here(), "said": mine.server.said}
        return mine.server, told, {"turns": mine.turns, "profile": mine.profile}

    fleet.answer_until_end(replies, boot)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if sys.argv[1:2] == ["seat"]:
        seat(sys.argv[2], json.loads(sys.argv[3]))
    elif len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1])))
    else:
        sys.exit(__doc__)
