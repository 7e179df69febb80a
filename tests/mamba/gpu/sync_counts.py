"""Syncs and time of a prefill forward of 36 gated-delta-net layers, stock and patched, on a GPU.

usage: PYTHONPATH=<sglang tree>:<its packages>:src python tests/mamba/gpu/sync_counts.py OUT.json
Real backend, pools and kernels of the release; two GEMMs a layer, as the model's projections.
Writes the file anew after each case, so that what was measured is kept when the run is cut short.
"""

from __future__ import annotations

import collections
import json
import os
import statistics
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from rig import QWEN3_NEXT, Request, Rig
from standins import lend_configurations, lend_missing

import sglang_perf_patches
from sglang_perf_patches.sets.mamba import host

CASES = {
    "4x1024 tracked": ([Request(1024)] * 4, True),
    "1x519 tracked": ([Request(519)], True),
    "4x1000 half tracked, prefixes": (
        [Request(1000, 64), Request(40, 0, False), Request(1000, 640), Request(63, 0, False)],
        True,
    ),
    "4x1024 untracked": ([Request(1024, 0, False)] * 4, True),
    "4x1024 no tracking": ([Request(1024)] * 4, False),
    "1x32768 tracked": ([Request(32768)], True),
}
SELECTIONS = {"stock": "none", "track-mask": "mamba.track-mask", "patched": "mamba"}
ROUNDS = 6
FORWARDS = 12


class Model:
    """The rig's layers with the projections around them."""

    def __init__(self) -> None:
        self.rig = Rig(QWEN3_NEXT, "cuda", slots=12)
        where: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
        self.first = torch.randn(2048, 12288, **where)
        self.second = torch.randn(4096, 2048, **where)
        self.conv = _conv_of(self.rig)

    def forward(self, batch: Any, inputs: Any, hidden: torch.Tensor, wide: torch.Tensor) -> Any:
        self.rig.backend.init_forward_metadata(batch)
        outputs = []
        for layer, given in zip(self.rig.layers, inputs, strict=True):
            torch.mm(hidden, self.first)
            outputs.append(
                self.rig.backend.forward_extend(layer=layer, forward_batch=batch, **given)
            )
            torch.mm(wide, self.second)
        return outputs


def main() -> None:
    out = Path(sys.argv[1])
    lend_missing(*os.environ.get("LEND", "").split())
    lend_configurations()
    import sglang

    found: dict[str, Any] = {
        "sglang": sglang.__version__,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "profile of nothing": _profiled(lambda _: None, None),
        "cases": {},
    }
    with torch.inference_mode():
        model = Model()
        for name, (requests, tracking) in CASES.items():
            try:
                found["cases"][name] = measure(model, requests, tracking)
            except Exception:
                found["cases"][name] = {"failed": traceback.format_exc()[-1500:]}
            found["conv"] = model.conv
            out.write_text(json.dumps(found, indent=1))
            short = {
                key: value for key, value in found["cases"][name].items() if "where" not in key
            }
            print(found["sglang"], name, json.dumps(short), flush=True)


def measure(model: Model, requests: list[Request], tracking: bool) -> dict[str, Any]:
    """One case: outputs first, then what waits, then the time, stock and patched by turns."""
    rig = model.rig
    tokens = sum(request.new for request in requests)
    inputs = rig.inputs(tokens)
    hidden = torch.randn(tokens, 2048, device="cuda", dtype=torch.bfloat16)
    wide = torch.randn(tokens, 4096, device="cuda", dtype=torch.bfloat16)

    def batch() -> Any:
        made = rig.batch(requests, tracking)
        if tracking:  # what the scheduler part of the patch does in prepare_for_extend
            made.reqs = requests
            mask = [request.tracked for request in requests]
            host.attach_track(made, mask, [request.track_seqlen for request in requests])
        torch.cuda.synchronize()
        return made

    def forward(made: Any) -> Any:
        return model.forward(made, inputs, hidden, wide)

    result: dict[str, Any] = {}
    reference: Any = None
    for label, selection in SELECTIONS.items():
        live = _activate(selection)
        if label != "stock":
            result[f"{label} live"] = live
        if label == "track-mask" and not live:
            sglang_perf_patches.deactivate()
            continue
        for _ in range(2):  # compile, and fill the allocators' caches
            forward(batch())
        rig.fill()
        kept = [*forward(batch()), *(state.clone() for state in rig.states())]
        if reference is None:
            reference = kept
        else:
            result[f"{label} equal"] = all(
                torch.equal(a, b) for a, b in zip(reference, kept, strict=True)
            )
        del kept
        result[f"{label} warnings"], result[f"{label} where"] = _warned(forward, batch())
        result[f"{label} profile"] = _profiled(forward, batch())
        result[f"{label} error mode"] = _gated(forward, batch())
        sglang_perf_patches.deactivate()
    del reference
    times: dict[str, list[float]] = {"stock": [], "patched": []}
    for turn in range(ROUNDS):
        for label in ("stock", "patched") if turn % 2 == 0 else ("patched", "stock"):
            _activate(SELECTIONS[label])
            forward(batch())
            for _ in range(FORWARDS if tokens < 10000 else 3):
                made = batch()
                start = time.perf_counter()
                forward(made)
                torch.cuda.synchronize()
                times[label].append(1e3 * (time.perf_counter() - start))
            sglang_perf_patches.deactivate()
    for label, values in times.items():
        result[f"{label} ms"] = {
            "median": round(statistics.median(values), 3),
            "min": round(min(values), 3),
            "quartiles": [round(q, 3) for q in statistics.quantiles(values, n=4)],
            "forwards": len(values),
        }
    ratio = result["patched ms"]["median"] / result["stock ms"]["median"]
    result["ratio of medians"] = round(ratio, 4)
    return result


def _activate(selection: str) -> list[str]:
    report = sglang_perf_patches.activate(selection)
    return [state.id for state in report.patches if state.state == "live"]


def _warned(forward: Any, batch: Any) -> tuple[int, dict[str, int]]:
    torch.cuda.set_sync_debug_mode("warn")
    places: collections.Counter[str] = collections.Counter()
    shown: Any = warnings.showwarning

    def show(message: Any, *_: Any, **__: Any) -> None:
        if "synchronizing" in str(message):
            frames = [f for f in traceback.extract_stack() if "sglang" in f.filename]
            frames = [f for f in frames if "/tests/" not in f.filename]
            last = frames[-1] if frames else None
            places[f"{Path(last.filename).name}:{last.lineno}" if last else "?"] += 1

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = show
            forward(batch)
    finally:
        warnings.showwarning = shown
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    return sum(places.values()), dict(places)


def _profiled(forward: Any, batch: Any) -> dict[str, int]:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        forward(batch)
        torch.cuda.synchronize()  # one cudaDeviceSynchronize, not a cudaStreamSynchronize
    names = collections.Counter(event.name for event in profile.events())
    wanted = ("cudaStreamSynchronize", "Memcpy DtoH", "Memcpy HtoD", "cudaEventSynchronize")
    return {
        want: sum(count for name, count in names.items() if name.startswith(want))
        for want in wanted
    }


def _gated(forward: Any, batch: Any) -> str:
    torch.cuda.set_sync_debug_mode("error")
    try:
        forward(batch)
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
    return "passes"


def _conv_of(rig: Rig) -> str:
    """Which causal convolution the release can run here; its Triton one where sgl_kernel fails."""
    requests = [Request(64)]
    inputs = rig.inputs(64)
    try:
        rig.forward(rig.batch(requests), inputs)
        torch.cuda.synchronize()
    except Exception as error:
        module = sys.modules[type(rig.backend).__module__]
        triton = next(
            sys.modules[name]
            for name in list(sys.modules)
            if name.endswith(".causal_conv1d_triton")
        )
        module.causal_conv1d_fn = triton.causal_conv1d_fn
        rig.forward(rig.batch(requests), inputs)
        return f"triton, since {type(error).__name__}: {str(error)[:200]}"
    return "as released"


if __name__ == "__main__":
    main()
