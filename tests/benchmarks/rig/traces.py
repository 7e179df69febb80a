"""What a profile says: calls of the runtime, waits, and how long the GPU works."""

from __future__ import annotations

import bisect
import gzip
import json
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from engine import Server

Event = dict[str, Any]

_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})
_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
_CALLS = ("cudaGraphLaunch", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpyAsync")
_BETWEEN_RANKS = re.compile(
    r"nccl|all_?reduce|cross_device_reduce|all_?gather|reduce_?scatter|(one|two)_?shot|multimem",
    re.IGNORECASE,
)
"""Names of kernels that wait for those of other ranks."""


def profiled(
    server: Server, work: Callable[[], object], ranks: int = 1, **options: Any
) -> list[list[Event]]:
    """The events of each rank of a profile of some work; none if none is written."""
    folder = Path(tempfile.mkdtemp(dir=server.folder))
    server.engine.start_profile(output_dir=str(folder), **options)
    work()
    server.engine.stop_profile()
    return written(folder, ranks)


def written(folder: Path, ranks: int) -> list[list[Event]]:
    """The events of each rank of a profile, once all of them are there and whole."""
    size, until = 0, time.monotonic() + 30
    while time.monotonic() < until:
        time.sleep(1)
        paths = sorted(folder.rglob("*.gz"))
        before, size = size, sum(path.stat().st_size for path in paths)
        if len(paths) >= ranks and size == before:
            break
    collected: list[list[Event]] = []
    for path in sorted(folder.rglob("*.gz"))[:ranks]:
        try:
            with gzip.open(path) as file:
                collected.append(json.load(file)["traceEvents"])
        except (EOFError, OSError, ValueError) as error:
            print("PROFILE", path.name, repr(error), flush=True)
    return collected


def busy_ms(found: Iterable[Event]) -> float:
    """Milliseconds in which kernels, copies or memsets run on the GPU."""
    total = end = 0.0
    for start, stop in sorted(
        (e["ts"], e["ts"] + e.get("dur", 0)) for e in found if e.get("cat") in _WORK
    ):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total / 1e3


def of_ranks(by_rank: list[list[Event]], times: int) -> dict[str, Any]:
    """Of each of so many forwards: how long each rank's GPU works, and waits for other ranks.

    All ranks run the same collectives in the same order. The rank that comes to one last waits for
    nobody, so the shortest of a collective's kernels is how long it takes. "work ms" is a GPU's
    other kernels and that: what is left if no rank waits for another.
    """
    moved = [
        [e for e in found if e.get("cat") == "kernel" and _BETWEEN_RANKS.search(e["name"])]
        for found in by_rank
    ]
    shared = min(map(len, moved), default=0)
    last = [sorted(each, key=lambda e: float(e["ts"]))[len(each) - shared :] for each in moved]
    least = sum(min(e["dur"] for e in same) for same in zip(*last, strict=True)) / 1e3
    ranks = []
    for found, collectives in zip(by_rank, moved, strict=True):
        skipped = {id(e) for e in collectives}
        own = busy_ms(e for e in found if id(e) not in skipped)
        ranks.append(
            {
                "busy ms": round(busy_ms(found) / times, 3),
                "work ms": round((own + least) / times, 3),
                "collectives": round(len(collectives) / times, 2),
                "collectives ms": round(sum(e["dur"] for e in collectives) / 1e3 / times, 3),
                **_idle(found, times),
            }
        )
    return {
        "collectives at best ms": round(least / times, 3),
        "ranks": ranks,
        "of rank 0": calls(by_rank, times) if by_rank else {},
    }


def _idle(found: Iterable[Event], times: int) -> dict[str, Any]:
    """How long the GPU idles, and before which kernels: milliseconds and times."""
    idle: Counter[str] = Counter()
    count: Counter[str] = Counter()
    end = float("inf")
    for event in sorted((e for e in found if e.get("cat") in _WORK), key=lambda e: float(e["ts"])):
        if 5 < event["ts"] - end < 20_000:  # longer: before the forwards
            idle[event["name"][:60]] += event["ts"] - end
            count[event["name"][:60]] += 1
        stop = event["ts"] + event.get("dur", 0)
        end = stop if end == float("inf") else max(end, stop)
    before = {
        name: [round(us / 1e3 / times, 3), round(count[name] / times, 2)]
        for name, us in idle.most_common(10)
    }
    return {"idle ms": round(idle.total() / 1e3 / times, 3), "idle before": before}


def calls(by_rank: list[list[Event]], times: int) -> dict[str, Any]:
    """Of each of so many forwards: calls, waits, and the GPU's time, all of the first rank."""
    found = next(iter(by_rank), [])
    counts: Counter[str] = Counter()
    longest: Counter[str] = Counter()
    for event in found:
        kind, name = str(event.get("cat", "")), str(event.get("name", ""))
        if kind in _RUNTIME:
            counts["kernel launches" if name in _LAUNCHES else name] += 1
        if kind in _WORK and event.get("ph") == "X":
            counts[kind] += 1
            counts["copies to the host"] += name.startswith("Memcpy DtoH")
            longest[name[:60]] += event.get("dur", 0)
    shown = ("kernel launches", *_CALLS, "kernel", "gpu_memcpy", "copies to the host")
    return {
        **{name: round(counts[name] / times, 2) for name in shown},
        "stream syncs in": {name: round(n / times, 2) for name, n in _syncs(found).items()},
        "gpu busy ms": round(busy_ms(found) / times, 3),
        "longest ms": {name: round(us / 1e3 / times, 2) for name, us in longest.most_common(8)},
    }


def _syncs(found: Iterable[Event]) -> Mapping[str, int]:
    """The operators of PyTorch that waited for a stream, outermost first."""
    spans = [each for each in found if each.get("ph") == "X"]
    operators = sorted(
        (each for each in spans if each.get("cat") == "cpu_op"), key=lambda each: float(each["ts"])
    )
    starts = [each["ts"] for each in operators]
    counts: Counter[str] = Counter()
    for sync in spans:
        if sync.get("name") != "cudaStreamSynchronize":
            continue
        at = sync["ts"]
        near = operators[bisect.bisect(starts, at - 1e5) : bisect.bisect(starts, at)]
        around = [op for op in near if op["tid"] == sync["tid"] and at <= op["ts"] + op["dur"]]
        counts[" > ".join(op["name"] for op in around) or "no operator"] += 1
    return counts
