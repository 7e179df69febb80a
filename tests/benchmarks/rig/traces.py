"""What a profile says: calls of the runtime, waits, and how long the GPU works."""

from __future__ import annotations

import bisect
import gzip
import json
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


def events(server: Server, work: Callable[[], object], **options: Any) -> list[Event]:
    """The events of a profile of some work; none if none is written.

    Of several ranks those of the first: what a GPU does is asked of one GPU.

    Args:
        server: whose processes are profiled.
        work: what is done meanwhile.
        options: of ``start_profile``, such as ``activities``.
    """
    folder = Path(tempfile.mkdtemp(dir=server.folder))
    server.profile(folder, True, **options)
    work()
    server.profile(folder, False)
    for _ in range(120):
        time.sleep(0.25)
        if any(folder.rglob("*.gz")):
            break
    time.sleep(2)  # until it is whole
    collected: list[Event] = []
    for path in sorted(folder.rglob("*.gz"))[:1]:
        try:
            with gzip.open(path) as file:
                collected += json.load(file)["traceEvents"]
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


def calls(found: list[Event], times: int) -> dict[str, Any]:
    """Of each of so many forwards: calls, waits, and the GPU's time."""
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
