"""What `mamba.gdn-prefill-graph` does beside what the proof compares; `on_release` plays it."""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

import contextlib
import dataclasses
import gc
import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.proof import stubs

stubs.lend()

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_jobs import PREFILL_GRAPH, _off, of_a_rank

import sglang_perf_patches
from sglang_perf_patches.live import engine
from sglang_perf_patches.live.published import Published
from sglang_perf_patches.model.setups import FEATURES
from sglang_perf_patches.sets import graphs
from sglang_perf_patches.sets.mamba.gdn_prefill_graph import (
    PATCH,
    kernel_break,
    prefill_tables,
)
from sglang_perf_patches.sets.mamba.gdn_prefill_graph import body as gdn_prefill_graph
from sglang_perf_patches.verify.mamba.cases import Batch, Request
from sglang_perf_patches.verify.mamba.gdn_prefill_graph import Replays, Runner
from sglang_perf_patches.verify.mamba.rig import called
from sglang_perf_patches.verify.stock import NoneByDefault
from tests.proof.mamba import fake_cuda_graph, flashinfer
from tests.proof.mamba.gdn_prefill_graph import Captured, WithOne
from tests.proof.mamba.harness import counted_gdn

FLA = "sglang.kernels.ops.attention.fla"
BLOCK = 8
SPELLINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "--tp-size 2": {"tp_size": 2},
    "--attn-dp-size 2": {"tp_size": 2, "attn_dp_size": 2},
    "--enable-dp-attention": {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True},
    "--enable-two-batch-overlap": {"enable_two_batch_overlap": True},
    "--attn-cp-size 2": {"tp_size": 2, "attn_cp_size": 2},
    "--moe-dense-tp-size 1": {"tp_size": 2, "moe_dense_tp_size": 1},
}


def parts() -> dict[str, Any]:
    at_boot = (tables, tiles, gates, chunks, kernels, buckets, ones, pools)
    return {part.__name__: part() for part in (*at_boot, of_a_rank, warm_ups, waits, leaving)}


_requests = st.lists(
    st.tuples(st.integers(1, 90), st.integers(0, 9)), min_size=1, max_size=9
).filter(lambda rows: 64 < sum(new for new, _ in rows) <= 300)


def tables() -> int:
    """Fills that follow each other in scribbled tables: the last one's are as stock makes them."""
    index = importlib.import_module(f"{FLA}.index")
    seen = 0

    @settings(max_examples=60, derandomize=True, database=None, deadline=None)
    @given(st.lists(_requests, min_size=1, max_size=3), st.integers(-(1 << 30), 1 << 30))
    def each(fills: list[list[tuple[int, int]]], scribble: int) -> None:
        nonlocal seen
        built = prefill_tables.ChunkTables(
            tokens=300, requests=9, block=BLOCK, tracks=True, slots_like=torch.zeros(1).int()
        )
        built._packed.fill_(scribble)
        built.slots.fill_(scribble)
        for rows in fills:
            lens, prefixes = (list(column) for column in zip(*rows, strict=True))
            slots = torch.arange(len(rows)).int() + 1
            built.fill(lens, prefixes, slots, None)
            seen += 1
        count, total = len(lens), sum(lens)
        starts = [0, *np.cumsum(lens).tolist()]
        assert built.starts.tolist() == starts + [total] * (9 - count)
        expected = index.prepare_chunk_indices(built.starts[: count + 1].clone(), 64)
        assert built.chunks[: len(expected)].tolist() == expected.tolist()
        rest = built.chunks[len(expected) :].tolist()
        assert rest == [[0, prefill_tables.BEYOND]] * len(rest)
        before = index.prepare_chunk_offsets(built.starts[: count + 1].clone(), 64).tolist()
        assert built.chunk_starts.tolist() == before + [before[-1]] * (9 - count)
        blocks = [[row, n] for row, new in enumerate(lens) for n in range(-(-new // BLOCK))]
        unused = [[prefill_tables.NOBODY, 0]] * (len(built.blocks) - len(blocks))
        assert built.blocks.tolist() == blocks + unused
        assert built.has_state.tolist() == [p > 0 for p in prefixes] + [False] * (9 - count)
        assert built.slots.tolist() == slots.tolist() + [prefill_tables.NOBODY] * (9 - count)
        assert not built._view("kept").any()

    each()
    return seen


def tiles() -> dict[str, list[Any]]:
    """Tiles that stock launches, and the numbers of tokens for which ours is another."""
    module = importlib.import_module(f"{FLA}.chunk_o")
    launched: list[int] = []

    class Kernel:
        def __getitem__(self, _: Any) -> Any:
            return lambda *_, BT, **__: launched.append(BT)  # noqa: N803

    others = []
    with mock.patch.object(module, "chunk_fwd_kernel_o", Kernel()):
        for tokens in range(1, 200):
            values = torch.zeros(1, tokens, 1, 16)
            module.chunk_fwd_o(values, values, values, values)
            if prefill_tables.tile(tokens) != launched[-1]:
                others.append(tokens)
    return {"stock's": sorted(set(launched)), "others": others}


def gates() -> dict[str, list[str]]:
    """What gates the patch on servers, by how they are started: the release resolves it."""
    context = importlib.import_module("sglang.srt.runtime_context")
    arguments = importlib.import_module("sglang.srt.server_args").ServerArgs
    backend = counted_gdn().rig.backend
    assert gdn_prefill_graph.unserved(backend, importlib.import_module) is None
    reasons: dict[str, list[str]] = {}
    for name, given_ in SPELLINGS.items():
        answer = called(
            arguments, model_path="dummy", attention_backend="triton", device="cpu", **given_
        )
        on = FEATURES.of(Published(answer, context.create_context(answer, role="scheduler"))).keys()
        if unproven := sorted(on - PATCH.rest["proven_with"].keys()):
            reasons[name] = unproven
    return reasons


def chunks() -> str | None:
    with mock.patch.object(importlib.import_module(f"{FLA}.chunk_delta_h"), "CHUNK_SIZE", 32):
        return gdn_prefill_graph.unserved(counted_gdn().rig.backend, importlib.import_module)


def kernels() -> dict[str, str | None]:
    """FlashInfer's kernel on GPUs and states of several kinds, and a kernel that nobody knows."""
    backend = counted_gdn().rig.backend
    kernel = flashinfer.kernel(counted_gdn().counter)
    pool = backend.req_to_token_pool.mamba_pool
    halved = dataclasses.replace(pool.mamba_cache, temporal=pool.mamba_cache.temporal.bfloat16())
    extends = (backend.kernel_dispatcher, "extend_kernel")
    changes: dict[str, tuple[Any, str, Any]] = {
        "Hopper": (*extends, kernel),
        "Blackwell": (kernel, "use_state_pool", True),
        "SM120": (kernel, "_prefill_needs_fp32_state", True),
        "bfloat16": (pool, "mamba_cache", halved),
        "unknown": (*extends, object()),
    }
    results = {}
    for name, change in changes.items():
        with mock.patch.object(*extends, kernel), mock.patch.object(*change):
            results[name] = gdn_prefill_graph.unserved(backend, importlib.import_module)
    return results


def buckets() -> dict[str, Any]:
    """What is captured on tables, and how many requests a replay may have."""
    results: dict[str, Any] = {}
    with _live():
        for size in (1, gdn_prefill_graph.SHORT, gdn_prefill_graph.SHORT + 64):
            (held,) = _runner(size).stocks.attn_metadata_buffers.values()
            results[str(size)] = held is not None
        results["most"] = _runner(1).stocks._captured_attn_metadata_max_bs
    backend, rows = counted_gdn().rig.backend, prefill_tables.ChunkTables.MOST
    for name, gathers in (("own batches", False), ("those of other ranks", True)):
        runner = SimpleNamespace(require_mlp_tp_gather=gathers, capture_num_tokens=[32, 33])
        results[name] = gdn_prefill_graph._leaves_some(runner, 33, rows, backend)
    return results


def ones() -> dict[str, list[int]]:
    """How many buckets, and up to which, have a graph of one request on several servers."""
    hook = importlib.import_module("sglang.srt.arg_groups.cuda_graph_hook")
    default = hook.generate_prefill_cuda_graph_batch_sizes(gdn_prefill_graph.SHORT)
    results = {}
    for name, sizes, count, is_gathered in (
        ("a GPU", default, 1, False),
        ("two GPUs", default, 2, False),
        ("two GPUs, few sizes", default[-3:], 2, False),
        ("DP attention", default, 2, True),
    ):
        runner = NoneByDefault(
            capture_num_tokens=sizes,
            require_mlp_tp_gather=is_gathered,
            backend=NoneByDefault(_tp_group=NoneByDefault(ranks=[*range(count)])),
        )
        having = [size for size in sizes if graphs.may_have_further(runner, size)]
        results[name] = [len(having), max(having, default=0)]
    return results


def warm_ups() -> list[int]:
    """Forwards of three captures: a server's first with a graph of one request, and two more."""
    vars(counted_gdn().rig.backend).pop(graphs._WARM, None)
    ran, run, counts = 0, Runner._run, []

    def counted(*given: Any) -> torch.Tensor:
        nonlocal ran
        ran += 1
        return run(*given)

    length = mock.patch.object(kernel_break, "chunk_length", return_value=flashinfer.chunk_length)
    with _live(), length, mock.patch.object(Runner, "_run", counted):
        for size in (96, 80, 64):  # none of up to 64 tokens has such a graph
            before = ran
            WithOne(counted_gdn()).replayed(Replays((), size))
            counts.append(ran - before)
    return counts


def pools() -> dict[str, bool]:
    """Runners whose graphs are freed before the next one's are captured, and what a pool is then.

    On a GPU the second capture failed with "use_count > 0", as a tape does.
    """
    first = _runner(1).stocks.backend._pool
    gc.collect()
    second = _runner(1).stocks.backend._pool
    gc.collect()
    try:
        fake_cuda_graph.Tape().capture_begin(pool=first)
    except AssertionError:
        return {"has a new pool": first is not second, "a pool without graphs is refused": True}
    raise ValueError("captured into a pool whose graphs were freed")


def waits() -> dict[str, list[int]]:
    """The layers whose load is waited for, in a counter of another kind than the proof's."""
    module = importlib.import_module("sglang.srt.mem_cache.unified_cache.unified_cache_linker")
    pool = counted_gdn().rig.pool
    batch = Batch((Request(3, 64, tracked=False),))
    counts = {}
    for side in ("stock", "patched"):
        waited: list[int] = []
        counter = module.LayerWiseLoadCounter(
            len(pool.mamba_map), lambda _, layer, waited=waited: waited.append(layer)
        )
        with _live() if side == "patched" else contextlib.nullcontext():
            runner = _runner(4)
            pool.register_layer_transfer_counter(counter)
            for consumer in (-1, counter.update_producer()):
                counter.set_consumer(consumer)
                for layer in range(len(pool.mamba_map) * (consumer >= 0)):
                    counter.complete(consumer, layer)
                play = counted_gdn()
                with play.counting():
                    runner.replay(play.batch(batch))
            pool.register_layer_transfer_counter(None)
            del runner
        counts[side] = waited
    return counts


def leaving() -> dict[str, Any]:
    """Taken off with a capture alive, and again without."""
    sglang_perf_patches.activate(PREFILL_GRAPH, strict=True)
    runner = _runner(1)
    sglang_perf_patches.deactivate()
    held = engine.report().of(PREFILL_GRAPH)
    with counted_gdn().counting():
        runner.replay(counted_gdn().batch(Batch((Request(1, tracked=False),))))
    still = bool(counted_gdn().rig.backend.prefill_graph_extend_active())
    del runner
    gc.collect()
    sglang_perf_patches.deactivate()
    has_left = engine.report() is None
    return {"state": held.state, "reason": held.reason, "replays": still, "left": has_left}


@contextlib.contextmanager
def _live() -> Iterator[None]:
    sglang_perf_patches.activate(PREFILL_GRAPH, strict=True)
    try:
        yield
    finally:
        _off()


def _runner(size: int) -> Runner:
    return Captured(counted_gdn()).captured(Replays((), size))
