"""Which waits stock and the patches have; `tests.proof` shows that both compute the same."""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

import importlib
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any
from unittest import mock

from tests.proof import stubs

stubs.lend()

import torch
from triton.runtime import interpreter

import sglang_perf_patches
from sglang_perf_patches.sets.mamba import host, lightning_rows, zero_sync
from sglang_perf_patches.sets.mamba import mamba2_chunk_indices as chunk_indices
from sglang_perf_patches.verify.mamba.cases import EDGES, PREFIX, Batch, Request, draw
from sglang_perf_patches.verify.mamba.gdn_prefill_graph import Replays
from sglang_perf_patches.verify.mamba.harness import source_has
from sglang_perf_patches.verify.mamba.lightning_rows import PATCH as ROWS
from sglang_perf_patches.verify.mamba.mamba2_chunk_indices import PATCH as CHUNKS
from sglang_perf_patches.verify.mamba.mamba2_chunk_indices import mixed
from sglang_perf_patches.verify.mamba.rig import Lightning
from tests.proof.mamba import harness
from tests.proof.mamba.harness import alike, noted
from tests.proof.mamba.lightning_rows import has_lists, waits_of_metadata
from tests.proof.mamba.zero_sync import FORWARDS, waits_as_upstream

PREFILL_GRAPH = "mamba.gdn-prefill-graph"
EXAMPLES = [*EDGES, *(draw(Random(seed)) for seed in range(40))]


def passes() -> Any:
    results: dict[str, Any] = {"layers": len(harness.counted_gdn().rig.layers)}
    for label, selection in (("stock", "none"), ("mamba", "mamba"), ("stock again", "none")):
        report = sglang_perf_patches.activate(selection, strict=True)
        here: dict[str, Any] = {
            "states": {s.id: s.state for s in report.patches if s.id.startswith("mamba.")}
        }
        for part in (forwards, fallbacks, mamba2):
            here[part.__name__] = part()
        here["ran"] = [s.id for s in sglang_perf_patches.activate(selection).patches if s.ran]
        if label == "mamba":
            here["debug"] = debug()
            here["pins"] = pins()
        sglang_perf_patches.deactivate()
        results[label] = here
    return results


def forwards() -> Any:
    """The waits of whole forwards, by place; the kernels, in which none waits, do not run."""
    gdn = harness.counted_gdn()
    with mock.patch.object(interpreter.GridExecutor, "__call__", _nothing):
        return {
            name: dict(Counter(noted(gdn.outputs)(FORWARDS[name])[1]))
            for name in ("half", "none", "no mask", "decode", "decode, none")
        }


def fallbacks() -> Any:
    """Metadata and waits of batches that the host does not know, and of a mixed one it does."""
    gdn = harness.counted_gdn()
    changes: tuple[Callable[[Any, Any], None], ...] = harness.UNKNOWN
    results = {change.__name__: _found(noted(gdn.changed)(change)) for change in changes}
    of_both = Batch(harness.CHANGED.requests, mode="MIXED")
    return results | {"mixed": _found(noted(gdn.metadata)(of_both))}


def mamba2() -> Any:
    waits = noted(partial(mixed, harness.counted_gdn()))
    return [
        {
            "waits": len(waits(Batch(batch.requests, tracking=False))[1]),
            "requests": len(batch.requests),
            "prefix": any(request.cached for request in batch.requests),
        }
        for batch in EXAMPLES
    ]


def debug() -> Any:
    """Whether the debug variable finds a host list that differs from the device's."""
    prefill = Batch((Request(65), Request(64)))
    tracked = ("mamba_track_mask", "mamba_track_seqlens") if has_lists() else ()
    gdn = harness.counted_gdn()
    results = {}
    with mock.patch.dict(os.environ, SGLANG_PERF_PATCHES_DEBUG="1"):
        mixed(gdn, prefill)
        results["right"] = ""
        for name in ("extend_seq_lens", "extend_prefix_lens", *tracked):
            batch = gdn.batch(prefill)
            held = getattr(batch, name)
            held[0] = not held[0] if held.dtype == torch.bool else held[0] + 1
            try:
                mixed(gdn, prefill, batch)
                results[name] = ""
            except host.HostDataMismatch as mismatch:
                results[name] = str(mismatch)
    return results


def pins() -> list[bool]:
    """Whether copies are pinned where stock pins its own, and where it does not."""
    common = importlib.import_module("sglang.srt.utils.common")
    results = []
    for answer in (True, False):
        with mock.patch.object(common, "is_pin_memory_available", return_value=answer):
            results.append(host.is_pinned())
    return results


def broken() -> Any:
    """What the project's own comparison says of patches broken on purpose."""
    gdn = harness.counted_gdn()
    zero = "mamba.zero-sync"
    to_device = host.to_device

    def flipped(tensors: Any, device: Any) -> Any:
        return [tensor.flip(0) for tensor in to_device(tensors, device)]

    def none(mask: Any) -> None:
        mask.any = lambda: torch.tensor(False)

    def each_time(_metadata: Any, _name: str, key: Any, make: Any) -> Any:
        return make(key)

    tracked = [Batch((Request(65), Request(70, 64), Request(130)))]
    plain = [Batch(tracked[0].requests, tracking=False)]

    def tracking() -> int:
        return alike(zero, gdn.forwards, [PREFIX], most=waits_as_upstream)

    def chunked() -> int:
        return alike(CHUNKS, partial(mixed, gdn), plain)

    old: dict[str, tuple[Any, str, Any, Callable[[], int]]] = {
        "no answers": (zero_sync, "_keep_answers", _nothing, tracking),
        "wrong answers": (zero_sync, "_keep_answers", none, tracking),
    }
    metadata = importlib.import_module("sglang.srt.layers.attention.mamba.mamba2_metadata")
    # upstream's own change knows what is tracked
    breaks = {} if hasattr(metadata.ForwardMetadata, "has_mamba_track_mask") else old
    breaks |= {
        "chunk copies": (host, "to_device", flipped, chunked),
        "chunks": (chunk_indices, "logical", lambda lens, _: ([0] * len(lens),) * 2, chunked),
    }
    if source_has("linear.lightning_backend", "mamba_track"):
        rig = harness.Counted(Lightning("seg_la"))
        most = waits_of_metadata(rig, own=int(not has_lists()))
        broken = (
            (host, "prefill", _nothing) if has_lists() else (lightning_rows, "_kept", each_time)
        )
        breaks["no rows"] = (*broken, lambda: alike(ROWS, rig.forwards, [PREFIX], most=most))
    verdicts = [each for each in sglang_perf_patches.verdicts() if each.word == "applies"]
    if PREFILL_GRAPH in {each.patch.id for each in verdicts}:
        from sglang_perf_patches.sets.mamba.gdn_prefill_graph import prefill_tables as tables
        from tests.proof.mamba.gdn_prefill_graph import Captured

        enumerate_right = tables.enumerate_rows

        def replay() -> int:
            wanted = Replays((Batch((Request(70, 64), Request(130))),), 205)
            return alike(PREFILL_GRAPH, Captured(gdn).replayed, [wanted])

        def reversed_(table: Any, counts: Any, unused: Any) -> None:
            enumerate_right(table, counts[::-1], unused)

        breaks |= {
            "tables": (tables, "enumerate_rows", reversed_, replay),
            "no windows": (tables.Tables, "keep_windows", _nothing, replay),
            "no states": (tables.ChunkTables, "keep_states", _nothing, replay),
        }
    errors = {}
    for name, (module, attribute, wrong, compare) in breaks.items():
        compare()  # it is right before
        with mock.patch.object(module, attribute, wrong):
            try:
                errors[name] = f"equal: {compare()}"
            except AssertionError as different:  # or the counter refuses it
                errors[name] = f"different: {different}"
    return errors


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _found(played: Any) -> dict[str, Any]:
    plan, waits = played
    return {
        "fields": {name: _plain(value) for name, value in plan["fields"].items()},
        "chunks": [_plain(value) for value in plan["chunks"]],
        "waits": len(waits),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape), value.tolist()]
    return [*map(_plain, value)] if isinstance(value, tuple) else value
