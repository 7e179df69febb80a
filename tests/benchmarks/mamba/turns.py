"""One patched Engine of a hybrid model in which the whole set is off and on in turn.

usage: python tests/benchmarks/mamba/turns.py OUT.json [PART …] [OPTION=VALUE …]

Boots differ by more than a patch does, so one Engine measures both sides: the time to the first
token and per token, and the launches and waits of a prefill from a profile. It also compares the
greedy tokens and all states bit by bit. PARTs are the names in `PARTS`; without a PART
all of them run. Options are fields of ServerArgs, or of the model's configuration with ``model.``
in front. Run it under ``python -m sglang_perf_patches run`` with SGLANG_PERF_PATCHES=mamba.
CELLS names other prompts than the four sizes, "1x130 3x300". LEFT_OUT names a patch without which
the set is a side of its own, "less". With LENT_NAMES=1 a release starts beside newer kernel wheels:
names that it imports, and they lack, have stand-ins.
Where several Engines boot at once, START_FILE names a file for which this one waits, after it has
booted and said READY.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ttft import ARGUMENTS, CONFIG

PROMPTS = {
    name: tuple(map(int, name.split("x")))
    for name in os.environ.get("CELLS", "1x519 8x512 4x2048 1x8000").split()
}
ROUNDS = int(os.environ.get("ROUNDS", "21"))
LOADS = {"64x512": (64, 512), "16x2048": (16, 2048), "64x128": (64, 128)}
TPOT = (1, 16, 64)
TOKENS = 64
SAID = int(os.environ.get("SAID", "200"))
PROBE = Path(__file__).resolve().parents[2] / "harness" / "probe"


class Turns:
    """The Engine, and what switches its patches."""

    def __init__(self, options: dict[str, Any], folder: str) -> None:
        self.folder = folder
        self.number = 0
        self.seed = 0
        self.engine = self._boot(options)

    def _boot(self, options: dict[str, Any]) -> Any:
        import sglang
        from sglang.srt.server_args import ServerArgs

        known = getattr(ServerArgs, "__dataclass_fields__", None) or ServerArgs.__struct_fields__
        print("sglang", sglang.__version__, "dropped", [n for n in options if n not in known])
        given = {name: value for name, value in options.items() if name in known}
        return sglang.Engine(model_path=f"{self.folder}/model", **given)

    def ask(self, word: str, limit_s: float = 120) -> Any:
        """Have the scheduler's process do something between requests."""
        self.number += 1
        done = Path(self.folder, f"done.{self.number}")
        part = Path(self.folder, "asked")
        part.write_text(f"{self.number} {word}")
        part.rename(Path(self.folder, "command"))
        until = time.time() + limit_s
        while not done.exists():
            if time.time() > until:
                raise TimeoutError(word)
            time.sleep(0.002)
        answer = json.loads(done.read_text())
        if isinstance(answer, str) and "Traceback" in answer:
            raise RuntimeError(answer)
        return answer

    def generate(self, prompts: list[list[int]], output: int) -> tuple[float, list[list[int]]]:
        """Seconds, and greedy tokens."""
        began = time.perf_counter()
        replies = self.engine.generate(
            input_ids=prompts,
            sampling_params={"temperature": 0, "max_new_tokens": output, "ignore_eos": True},
        )
        return time.perf_counter() - began, [list(reply["output_ids"]) for reply in replies]

    def prompts(self, count: int, length: int) -> list[list[int]]:
        """New ones."""
        self.seed += 1
        draw = random.Random(self.seed)
        return [[draw.randrange(10, 31000) for _ in range(length)] for _ in range(count)]


def tokens(turns: Turns, sides: list[str]) -> dict[str, Any]:
    """Greedy tokens of many prompts, of longer ones that begin with them, and the final states."""
    draw = random.Random(5)
    first = [
        [draw.randrange(10, 31000) for _ in range(draw.choice((17, 64, 65, 300, 519, 1100, 2500)))]
        for _ in range(SAID // 2)
    ]
    longer = [prompt + [draw.randrange(10, 31000) for _ in range(130)] for prompt in first]
    said: dict[str, Any] = {}
    for side in sides:
        turns.ask(side)
        turns.engine.flush_cache()
        time.sleep(0.3)
        turns.ask("zero")
        replies = []
        for prompts in (first, longer):
            for start in range(0, len(prompts), 10):
                # One at a time, then several: no race may decide which requests share a batch.
                group = prompts[start : start + 10]
                replies += [turns.generate([prompt], 4)[1][0] for prompt in group]
        said[side] = {"tokens": replies, "sums": turns.ask("sums")}
    turns.engine.flush_cache()
    stock = said["stock"]
    out: dict[str, Any] = {
        "prompts": SAID,
        "different tokens": len({str(t) for t in stock["tokens"]}),
    }
    for side in sides:
        same = [a == b for a, b in zip(stock["tokens"], said[side]["tokens"], strict=True)]
        layers = list(zip(stock["sums"], said[side]["sums"], strict=True))
        out[side] = {
            "tokens equal": sum(same),
            "layers equal": sum(a == b for a, b in layers),
            "layers": len(layers),
            "slots differ": sum(x != y for a, b in layers for x, y in zip(a, b, strict=True)),
            "slots written": sum(x != 0 for x in said[side]["sums"][0]),
        }
    return out


def together(turns: Turns, sides: list[str]) -> dict[str, Any]:
    """The same with several requests in a prefill, where the scheduler puts them in one batch."""
    said: dict[str, Any] = {side: [] for side in sides}
    for number in range(6):
        prompts = turns.prompts(8, 60 + 150 * number)
        for side in sides:
            turns.ask(side)
            turns.engine.flush_cache()
            time.sleep(0.2)
            said[side] += turns.generate(prompts, 4)[1]
    stock = said["stock"]
    return {
        side: f"{sum(a == b for a, b in zip(stock, said[side], strict=True))} of {len(stock)}"
        for side in sides
    }


def many(turns: Turns, sides: list[str]) -> dict[str, Any]:
    """More requests in a prefill than tables hold, and their time to the first token."""
    found: dict[str, Any] = {}
    for count, length in ((80, 20), (120, 15)):
        prompts, said = turns.prompts(count, length), {}
        for side in sides:
            turns.ask(side)
            turns.engine.flush_cache()
            time.sleep(0.2)
            said[side] = turns.generate(prompts, 4)[1]
        same = {side: sum(map(list.__eq__, said["stock"], said[side])) for side in sides}
        measure = lambda: turns.generate(turns.prompts(count, length), 1)[0]  # noqa: B023, E731
        times = by_turns(turns, sides, measure, ROUNDS // 2 + 1)
        found[f"{count}x{length}"] = {"tokens equal": same, "ttft": times}
    return found


def offloaded(turns: Turns, sides: list[str]) -> dict[str, Any]:
    """Tokens after prefixes whose states come back from the host while the prefill begins.

    It needs ``enable_hierarchical_cache`` and ``max_total_tokens`` of some 40,000. A side of its
    own leaves out the patch's wait: where its tokens are other ones, the comparison sees the fault.
    """
    said: dict[str, Any] = {}
    for side in [*sides, "unwaited"]:
        turns.seed = 50_000
        turns.ask(side)
        turns.engine.flush_cache()
        time.sleep(0.3)
        turns.ask("zero")
        first = [prompt for number in range(12) for prompt in turns.prompts(1, 640 + 64 * number)]
        ends = turns.prompts(len(first), 130)
        for prompt in first:
            turns.generate([prompt], 1)
        time.sleep(1)
        for _ in range(8):
            turns.generate(turns.prompts(8, 1000), 1)
        before = turns.ask("loads")
        longer = [prompt + end for prompt, end in zip(first, ends, strict=True)]
        replies = [turns.generate([prompt], 8)[1][0] for prompt in longer]
        said[side] = {"tokens": replies, "loads": turns.ask("loads") - before}
    stock = said["stock"]["tokens"]
    return {
        side: {"loads": each["loads"], "tokens equal": sum(map(list.__eq__, stock, each["tokens"]))}
        for side, each in said.items()
    } | {"prompts": len(stock), "different tokens": len({str(tokens) for tokens in stock})}


def by_turns(turns: Turns, sides: list[str], measure: Any, rounds: int) -> dict[str, Any]:
    """Milliseconds of each side, and the ratio to stock's in the same round, with quartiles."""
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 else sides[::-1]:
            turns.ask(side)
            taken[side].append(1e3 * measure())
    out: dict[str, Any] = {}
    for side in sides:
        ratios = [new / old for old, new in zip(taken["stock"], taken[side], strict=True)]
        out[side] = {
            "ms": [round(q, 3) for q in statistics.quantiles(taken[side], n=4)],
            "ratio": [round(q, 3) for q in statistics.quantiles(ratios, n=4)],
        }
    if "less" in sides:
        ratios = [new / old for old, new in zip(taken["less"], taken["patched"], strict=True)]
        out["patched"]["to less"] = [round(q, 3) for q in statistics.quantiles(ratios, n=4)]
    return out


def ttft(turns: Turns, sides: list[str]) -> dict[str, Any]:
    """Each prompt is new, so nothing is cached."""
    found = {}
    for name, (count, length) in PROMPTS.items():
        for side in sides:
            turns.ask(side)
            for _ in range(2):
                turns.generate(turns.prompts(count, length), 1)
        measure = lambda: turns.generate(turns.prompts(count, length), 1)[0]  # noqa: B023, E731
        found[name] = by_turns(turns, sides, measure, ROUNDS)
        print("TTFT", name, json.dumps(found[name]), flush=True)
    return found


def load(turns: Turns, sides: list[str]) -> dict[str, Any]:
    """Until all of many new prompts have their first token: prefills follow each other."""
    found = {}
    for name, (count, length) in LOADS.items():
        for side in sides:
            turns.ask(side)
            turns.generate(turns.prompts(count, length), 1)
        measure = lambda: turns.generate(turns.prompts(count, length), 1)[0]  # noqa: B023, E731
        found[name] = by_turns(turns, sides, measure, ROUNDS // 2 + 1)
        print("LOAD", name, json.dumps(found[name]), flush=True)
    return found


def tpot(turns: Turns, sides: list[str]) -> dict[str, Any]:
    """Per token of whole batches, including the prefill of 64 tokens."""
    found = {}
    for count in TPOT:
        for side in sides:
            turns.ask(side)
            turns.generate(turns.prompts(count, 64), 8)
        measure = lambda: turns.generate(turns.prompts(count, 64), TOKENS)[0] / TOKENS  # noqa: B023, E731
        found[str(count)] = by_turns(turns, sides, measure, ROUNDS // 2 + 1)
        print("TPOT", count, json.dumps(found[str(count)]), flush=True)
    return found


def profile(turns: Turns, sides: list[str]) -> dict[str, Any]:
    """Calls of the runtime and the GPU's work in a prefill, from a trace of four of them."""
    found: dict[str, Any] = {}
    for side in sides:
        turns.ask(side)
        for name in ("1x519", "4x2048") if "4x2048" in PROMPTS else [*PROMPTS][:2]:
            turns.generate(turns.prompts(*PROMPTS[name]), 1)
            where = f"{turns.folder}/trace-{side}-{name}"
            turns.engine.start_profile(output_dir=where)
            for _ in range(4):
                turns.generate(turns.prompts(*PROMPTS[name]), 1)
            turns.engine.stop_profile()
            found[f"{name} {side}"] = counted_below(where)
            print("PROFILE", name, side, json.dumps(found[f"{name} {side}"]), flush=True)
    return found


def counted_below(folder: str) -> dict[str, Any] | str:
    """As `counted`, of the first trace that is written below a folder, or why there is none."""
    traces: list[str] = []
    for _ in range(100):
        traces = glob.glob(f"{folder}/**/*.gz", recursive=True)
        if traces:
            break
        time.sleep(0.1)
    time.sleep(2)
    try:
        return counted(traces[0]) if traces else "no trace"
    except (EOFError, OSError, ValueError) as error:  # it was still being written
        return repr(error)


def counted(trace: str) -> dict[str, Any]:
    """Of one prefill, the mean of the four in a trace."""
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    work = [e for e in events if e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}]
    calls: Counter[str] = Counter()
    for event in events:
        name = str(event.get("name", ""))
        if str(event.get("cat", "")) in {"cuda_runtime", "cuda_driver"}:
            calls[name] += 1
    kernels: Counter[str] = Counter()
    for event in work:
        kernels[event["name"][:60]] += event.get("dur", 0)
    names = ("cudaGraphLaunch", "cudaLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync")
    waits = ("cudaStreamSynchronize", "cudaEventSynchronize")
    return {
        "gpu busy ms": round(sum(e.get("dur", 0) for e in work) / 4e3, 2),
        **{name: calls[name] / 4 for name in (*names, *waits)},
        "longest": {name: round(us / 4e3, 2) for name, us in kernels.most_common(8)},
    }


PARTS = {
    "tokens": tokens,
    "together": together,
    "many": many,
    "offloaded": offloaded,
    "ttft": ttft,
    "load": load,
    "tpot": tpot,
    "profile": profile,
}


def main(out: Path, words: list[str]) -> None:
    """Boot, measure; write `out` after each part."""
    folder = tempfile.mkdtemp()
    os.environ["TURNS_FOLDER"] = folder
    config, options = dict(CONFIG), dict(ARGUMENTS)
    options.pop("disable_piecewise_cuda_graph")
    options.pop("linear_attn_backend")
    options |= {"max_running_requests": 64, "cuda_graph_max_bs": 64, "cuda_graph_max_bs_decode": 64}
    for word in words:
        name, given, value = word.partition("=")
        if given:
            with contextlib.suppress(ValueError):
                value = json.loads(value)
            held = config if name.startswith("model.") else options
            held[name.removeprefix("model.")] = value
    layers = config["num_hidden_layers"]
    config["layer_types"] = (config["layer_types"][:4] * layers)[:layers]
    Path(folder, "model").mkdir()
    Path(folder, "model", "config.json").write_text(json.dumps(config))
    began = time.time()
    turns = Turns(options, folder)
    found: dict[str, Any] = {"options": words, "boot s": round(time.time() - began, 1)}
    found["sides"] = turns.ask("said", 300)
    found["ready s"] = round(time.time() - began, 1)
    print("READY", json.dumps(found), flush=True)
    while os.environ.get("START_FILE") and not Path(os.environ["START_FILE"]).exists():
        time.sleep(0.05)
    sides = ["stock", "patched", *(["less"] if os.environ.get("LEFT_OUT") else [])]
    try:
        for part in [word for word in words if word in PARTS] or set(PARTS) - {"many", "offloaded"}:
            more = ["flashinfer"] if part == "ttft" and "flashinfer" in words else []
            began = time.time()
            found[part] = PARTS[part](turns, sides + more)
            found[f"{part} s"] = round(time.time() - began, 1)
            print(part, json.dumps(found[part])[:2000], flush=True)
            found["patches"] = ran()
            out.write_text(json.dumps(found, indent=1) + "\n")
    finally:
        turns.engine.shutdown()


def ran() -> dict[str, Any]:
    """The patches that ran in a process of this server, and those that stayed out, with why."""
    from sglang_perf_patches.seen import records

    processes = [each for each in records.read_all() if each["server"] == os.getpid()]
    states = [state for process in processes for state in process["patches"]]
    return {
        "ran": sorted({state["id"] for state in states if state["ran"]}),
        "out": sorted(
            f"{state['id']} {state['state']}: {state['reason']}"
            for state in states
            if state["state"] in {"gated", "conflict", "failed", "refused"}
        ),
    }


if __name__ == "__main__":
    if os.environ.get("LENT_NAMES"):
        from sglang_perf_patches.proof import lent

        lent.lend_beside_wheels()
    for _name in ("HF_HUB_OFFLINE", "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK", "DUMMY_WEIGHTS"):
        os.environ.setdefault(_name, "1")
    _folders = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parent / "switch"), str(PROBE)]
    os.environ["PYTHONPATH"] = os.pathsep.join(_folders)
    main(Path(sys.argv[1]), sys.argv[2:])
