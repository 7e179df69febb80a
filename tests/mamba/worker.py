"""What stock sglang and the patches compute for the same prefills, on the release on PYTHONPATH.

Prints one JSON object: for each part what was found, for the tests to judge.
"""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

warnings.simplefilter("ignore")

import lent

lent.lend()

import scheduling
import sglang
import syncs
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rig import Request, Rig

import sglang_perf_patches
from sglang_perf_patches.sets.mamba import host

_METADATA = "sglang.srt.layers.attention.mamba.mamba2_metadata"

SCENARIOS = {
    # one token over a boundary, on it with a prefix hit, forced before the end, too short to track
    "half": [
        [
            Request(65),
            Request(64, 64),
            Request(70, 64, seqlen=129),
            Request(9, 3, tracked=False),
        ]
    ],
    "all": [[Request(64), Request(66)]],
    "none": [[Request(20, tracked=False), Request(7, 64, tracked=False)]],
    "no mask": [[Request(66), Request(5)]],
    "chunks": [[Request(64), Request(8, tracked=False)], [Request(65, 64)]],
}


class Bench:
    """A rig whose tensors count as the device's."""

    def __init__(self) -> None:
        self.counter = syncs.Counter()
        syncs.counting_kernels_as_device(self.counter)
        self.rig = Rig()
        self.rig.backend.device = syncs.DEVICE
        self.counter.own(*self.rig.states(), self.rig.pool.req_index_to_mamba_index_mapping)
        for layer in self.rig.layers:
            self.counter.own(layer.A_log, layer.dt_bias, layer.conv_weights)

    def batch(self, requests: list[Request], tracking: bool = True, **options: Any) -> Any:
        """A batch as the scheduler's part of the patches leaves it."""
        made = self.rig.batch(requests, tracking, **options)
        if tracking:
            made.reqs = requests
            mask = [request.tracked for request in requests]
            host.attach_track(made, mask, [request.track_seqlen for request in requests])
        self.counter.own(*(v for k, v in vars(made).items() if k != "seq_lens_cpu"))
        return made

    @contextmanager
    def counting(self) -> Iterator[list[str]]:
        self.counter.found.clear()
        found: list[str] = []
        with self.counter:
            yield found
        found.extend(self.counter.found)


def main() -> None:
    bench = Bench()
    examples = _examples()
    found: dict[str, Any] = {"sglang": sglang.__version__}
    passes = ["none", "mamba", "none"]
    if not hasattr(importlib.import_module(_METADATA).ForwardMetadata, "has_mamba_track_mask"):
        passes.insert(2, "mamba.track-mask")
    parts: list[tuple[str, Callable[[Bench, Any], Any]]] = [
        ("forwards", forwards),
        ("metadata", metadata),
        ("fallbacks", fallbacks),
        ("mamba2", mamba2),
        ("flashinfer", flashinfer),
        ("names", names),
        ("scheduled", scheduled),
    ]
    scheduling.alone()
    _flashinfer_module()
    for number, selection in enumerate(passes):
        label = "stock" if number == 0 else "stock again" if selection == "none" else selection
        report = sglang_perf_patches.activate(selection, strict=True)
        here: dict[str, Any] = {
            "states": {s.id: s.state for s in report.patches if s.id.startswith("mamba.")}
        }
        for name, part in parts:
            if label == "stock again" and name == "forwards":
                continue
            started = time.monotonic()
            here[name] = part(bench, examples)
            print(f"{label} {name} {time.monotonic() - started:.1f} s", file=sys.stderr)
        here["ran"] = [s.id for s in sglang_perf_patches.activate(selection).patches if s.ran]
        if label == "mamba":
            here["debug"] = debug(bench)
        sglang_perf_patches.deactivate()
        found[label] = here
    print(json.dumps(found))


def forwards(bench: Bench, _: Any) -> Any:
    """Digests of outputs and of all states, and the waits, by scenario."""
    results = {}
    for name, batches in SCENARIOS.items():
        bench.rig.fill()
        outputs: list[torch.Tensor] = []
        waits: list[str] = []
        for seed, requests in enumerate(batches):
            made = bench.batch(requests, tracking=name != "no mask")
            inputs = bench.rig.inputs(sum(request.new for request in requests), seed)
            bench.counter.own(*(tensor for given_ in inputs for tensor in given_.values()))
            with bench.counting() as found:
                outputs += bench.rig.forward(made, inputs)
            waits += found
        results[name] = {
            "outputs": [_digest(tensor) for tensor in outputs],
            "states": [_digest(state) for state in bench.rig.states()],
            "finite": all(bool(tensor.isfinite().all()) for tensor in outputs),
            "waits": dict(Counter(waits)),
        }
    return results


def metadata(bench: Bench, examples: list[list[Request]]) -> Any:
    """Every field of the metadata and the chunk indices, for each example."""
    return [_planned(bench, bench.batch(requests)) for requests in examples]


def _planned(bench: Bench, batch: Any) -> dict[str, Any]:
    backend = bench.rig.backend
    with bench.counting() as found:
        backend.init_forward_metadata(batch)
        start = backend.forward_metadata.query_start_loc
        chunks = [
            function(start, size)
            for function in _chunk_functions()
            for size in (16, 64)
            if start is not None
        ]
    fields = {
        name: _plain(value)
        for name, value in vars(backend.forward_metadata).items()
        if isinstance(value, torch.Tensor | bool | int | None)
    }
    own = ("has_mamba_track_mask", "mamba_track_mask_indices", "conv_states_mask_indices")
    return {
        "fields": {k: v for k, v in fields.items() if k not in own},
        "own": {k: v for k, v in fields.items() if k in own},
        "chunks": [_plain(value) for value in chunks],
        "waits": len(found),
    }


def fallbacks(bench: Bench, _: Any) -> Any:
    """Batches that the host does not know, or not wholly."""
    requests = [Request(65), Request(70, 64), Request(9, tracked=False)]

    def padded(batch: Any) -> None:
        for name in ("mamba_track_mask", "mamba_track_seqlens"):
            tensor = getattr(batch, name)
            setattr(batch, name, torch.cat([tensor, tensor.new_zeros(0)]))
            bench.counter.own(getattr(batch, name))
        batch.mamba_prefill_track_mask_cpu = None

    def tensors(batch: Any) -> None:
        batch.extend_seq_lens_cpu = torch.tensor(batch.extend_seq_lens_cpu)
        batch.extend_prefix_lens_cpu = torch.tensor(batch.extend_prefix_lens_cpu)

    def half(batch: Any) -> None:
        batch.tbo_parent_token_range = (0, sum(r.new for r in requests))

    def relabelled(batch: Any) -> None:
        batch._original_forward_mode = batch.forward_mode

    def longer(batch: Any) -> None:
        batch.extend_prefix_lens_cpu = [*batch.extend_prefix_lens_cpu, 0]

    def exchanged(batch: Any) -> None:
        batch.mamba_track_seqlens = batch.mamba_track_seqlens.clone()
        bench.counter.own(batch.mamba_track_seqlens)
        batch.mamba_track_seqlens_cpu = None

    results = {}
    for change in (padded, tensors, half, relabelled, longer, exchanged):
        batch = bench.batch(requests)
        change(batch)
        results[change.__name__] = _planned(bench, batch)
    results["mixed"] = _planned(bench, bench.batch(requests, mode="MIXED"))
    return results


def mamba2(bench: Bench, examples: list[list[Request]]) -> Any:
    """Mamba2's own metadata, made of the same batches."""
    module = importlib.import_module(_METADATA)
    results = []
    for requests in examples[:40]:
        batch = bench.batch(requests, tracking=False)
        start = torch.tensor([0, *_sums(r.new for r in requests)], dtype=torch.int32)
        cache = torch.arange(len(requests), dtype=torch.int32)
        bench.counter.own(start, cache)
        plain = module.ForwardMetadata(query_start_loc=start, mamba_cache_indices=cache)
        with bench.counting() as found:
            made = module.Mamba2Metadata.prepare_mixed(plain, 16, batch)
        mixed = made.mixed_metadata
        results.append(
            {
                "chunks": [_plain(mixed.chunk_indices), _plain(mixed.chunk_offsets)],
                "rest": [_plain(mixed.seq_idx), _plain(mixed.has_initial_states)],
                "waits": len(found),
                "requests": len(requests),
                "prefix": any(r.cached for r in requests),
            }
        )
    return results


def flashinfer(bench: Bench, examples: list[list[Request]]) -> Any:
    """The checkpoint plan of FlashInfer's prefill, where the release has one."""
    module = _flashinfer_module()
    if module is None:
        return None
    results = []
    for requests in examples[:40]:
        batch = bench.batch(requests)
        bench.rig.backend.init_forward_metadata(batch)
        plan = bench.rig.backend.forward_metadata
        try:
            with bench.counting() as found:
                module.maybe_build_flashinfer_checkpoint_plan(batch, plan, syncs.DEVICE)
            error = None
        except ValueError as raised:
            error = str(raised)
        results.append(
            {
                "error": error,
                "plan": {
                    name: _plain(getattr(plan, name, None))
                    for name in (
                        "track_ssm_h_src",
                        "state_checkpoint_cu_starts",
                        "num_state_checkpoints",
                        "state_checkpoint_every_n_tokens",
                    )
                },
                "waits": len(found),
            }
        )
    return results


def names(bench: Bench, _: Any) -> Any:
    """Upstream's three names, as the layers of 0.5.11 read them."""
    batch = bench.batch([Request(65), Request(9, tracked=False), Request(64)])
    bench.rig.backend.init_forward_metadata(batch)
    plan = bench.rig.backend.forward_metadata
    return {
        name: _plain(getattr(plan, name, "missing"))
        for name in ("has_mamba_track_mask", "mamba_track_mask_indices", "conv_states_mask_indices")
    }


def scheduled(bench: Bench, _: Any) -> Any:
    """A batch that the release's own scheduler and ForwardBatch made, not this test."""
    requests = [Request(65), Request(9), Request(70, 64), Request(128, 128)]
    try:
        with bench.counting():
            _, batch = scheduling.scheduled(bench.rig, requests)
    except ModuleNotFoundError:  # 0.5.23 has its chunk cache elsewhere; no patch of its scheduler
        return None
    bench.counter.own(*(v for k, v in vars(batch).items() if not k.endswith("_cpu")))
    known = host.prefill(batch)
    return _planned(bench, batch) | {
        "mask": batch.mamba_track_mask.tolist(),
        "seqlens": batch.mamba_track_seqlens.tolist(),
        "known": None if known is None or known.track is None else list(known.track.mask),
    }


def debug(bench: Bench) -> Any:
    """Whether the debug variable finds a host list that is not what the device has."""
    os.environ["SGLANG_PERF_PATCHES_DEBUG"] = "1"
    found = {}
    try:
        bench.rig.backend.init_forward_metadata(bench.batch([Request(65), Request(64)]))
        found["right"] = ""
        for name in ("extend_seq_lens", "extend_prefix_lens", "mamba_track_mask"):
            batch = bench.batch([Request(65), Request(64)])
            held = getattr(batch, name)
            held[0] = 0 if held.dtype == torch.bool else held[0] + 1
            try:
                bench.rig.backend.init_forward_metadata(batch)
                found[name] = ""
            except host.HostDataMismatch as mismatch:
                found[name] = str(mismatch)
    finally:
        del os.environ["SGLANG_PERF_PATCHES_DEBUG"]
    return found


def _examples() -> list[list[Request]]:
    """Drawn by hypothesis, the same in each run."""
    request = st.builds(
        Request,
        new=st.one_of(st.integers(1, 260), st.sampled_from([63, 64, 65, 127, 128, 129, 192])),
        cached=st.one_of(st.just(0), st.integers(0, 5).map(lambda n: 64 * n), st.integers(0, 200)),
        tracked=st.booleans(),
    )
    drawn: list[list[Request]] = []

    @settings(
        max_examples=120,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(request, min_size=1, max_size=9))
    def draw(requests: list[Request]) -> None:
        # The scheduler tracks what has a whole chunk, up to its end or to a boundary before it.
        drawn.append(
            [
                Request(r.new, r.cached, r.tracked and r.new >= 64, _forced(r, number))
                for number, r in enumerate(requests)
            ]
        )

    draw()
    return drawn


def _forced(request: Request, number: int) -> int | None:
    if number % 3 == 2 and request.new > 64:
        return request.cached + request.new // 64 * 64 + 1
    return None


def _chunk_functions() -> list[Any]:
    for name in ("sglang.kernels.ops.attention.fla.index", "sglang.srt.layers.attention.fla.index"):
        if name in sys.modules:
            module = sys.modules[name]
            return [module.prepare_chunk_indices, module.prepare_chunk_offsets]
    raise RuntimeError("no FLA index module has been imported")


def _flashinfer_module() -> Any:
    name = "sglang.srt.layers.attention.linear.kernels.gdn_flashinfer"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:  # 0.5.23 has its chunk cache elsewhere; no patch of its scheduler
        return None
    return module if hasattr(module, "maybe_build_flashinfer_checkpoint_plan") else None


def _sums(values: Any) -> Iterator[int]:
    total = 0
    for value in values:
        total += value
        yield total


def _digest(tensor: torch.Tensor) -> str:
    kept = tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(kept).hexdigest()[:16]}"


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), value.tolist()]
    return value


if __name__ == "__main__":
    main()
