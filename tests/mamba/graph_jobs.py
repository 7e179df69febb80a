"""What `mamba.gdn-prefill-graph` does on the release on PYTHONPATH, beside what the proof compares.

`on_release` plays ``parts``, ``many`` and what is ``broken``, and the tests judge what they find.
"""

# ruff: noqa: E402  (the stand-ins must be in place before sglang is imported)

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

warnings.simplefilter("ignore")

from tests.proof import stubs

stubs.lend()

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sglang_perf_patches
from sglang_perf_patches.live import engine
from sglang_perf_patches.live.published import Published
from sglang_perf_patches.model.setups import FEATURES
from sglang_perf_patches.sets import graphs
from sglang_perf_patches.sets.mamba.gdn_prefill_graph import (
    PATCH,
    chunk_tables,
    kernel_break,
    one_request,
    prefill_tables,
)
from sglang_perf_patches.sets.mamba.gdn_prefill_graph import body as gdn_prefill_graph
from sglang_perf_patches.verify.mamba.cases import Batch, Request
from sglang_perf_patches.verify.mamba.gdn_prefill_graph import Replays, Runner
from sglang_perf_patches.verify.mamba.rig import Rig, called
from sglang_perf_patches.verify.stock import NoneByDefault
from tests.proof.mamba import fake_cuda_graph, flashinfer
from tests.proof.mamba.gdn_prefill_graph import ONE, Captured, Loading, WithBreaks, WithOne
from tests.proof.mamba.harness import Counted, alike, counted_gdn

PREFILL_GRAPH = PATCH.id
FLA = "sglang.kernels.ops.attention.fla"
_EXECUTOR = "sglang.srt.model_executor"
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
    """What each part finds."""
    at_boot = (tables, tiles, gates, chunks, kernels, buckets, ones, pools)
    chosen = (*at_boot, of_a_rank, warm_ups, waits, leaving)
    return {part.__name__: part() for part in chosen}


# -- the tables ------------------------------------------------------------------------------------

_requests = st.lists(
    st.tuples(st.integers(1, 90), st.integers(0, 9)), min_size=1, max_size=9
).filter(lambda rows: 64 < sum(new for new, _ in rows) <= 300)


def tables() -> int:
    """Fills that follow each other, with anything in the tables before: only the last one counts.

    What is known of it is compared with stock's own functions.
    """
    index = importlib.import_module(f"{FLA}.index")
    seen = 0

    @settings(max_examples=60, derandomize=True, database=None, deadline=None)
    @given(st.lists(_requests, min_size=1, max_size=3), st.integers(-(1 << 30), 1 << 30))
    def each(fills: list[list[tuple[int, int]]], scribble: int) -> None:
        nonlocal seen
        built = chunk_tables.ChunkTables(
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
        assert rest == [[0, chunk_tables.BEYOND]] * len(rest)
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
            if chunk_tables.tile(tokens) != launched[-1]:
                others.append(tokens)
    return {"stock's": sorted(set(launched)), "others": others}


# -- who is served ---------------------------------------------------------------------------------


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
        held = context.create_context(answer, role="scheduler")
        on = FEATURES.of(Published(answer, held)).keys()
        reasons[name] = sorted(on - PATCH.rest["proven_with"].keys())
    return reasons


def chunks() -> str | None:
    """If stock's chunks had another size."""
    with mock.patch.object(importlib.import_module(f"{FLA}.chunk_delta_h"), "CHUNK_SIZE", 32):
        return gdn_prefill_graph.unserved(counted_gdn().rig.backend, importlib.import_module)


def kernels() -> dict[str, str | None]:
    """FlashInfer's kernel on GPUs and states of several kinds, and a kernel that nobody knows."""
    backend = counted_gdn().rig.backend
    kernel = flashinfer.kernel(counted_gdn().counter)
    pool = backend.req_to_token_pool.mamba_pool
    halved = dataclasses.replace(pool.mamba_cache, temporal=pool.mamba_cache.temporal.bfloat16())
    cases: dict[str, list[Any]] = {
        "Hopper": [],
        "Blackwell": [mock.patch.object(kernel, "use_state_pool", True)],
        "SM120": [mock.patch.object(kernel, "_prefill_needs_fp32_state", True)],
        "bfloat16": [mock.patch.object(pool, "mamba_cache", halved)],
        "unknown": [mock.patch.object(backend.kernel_dispatcher, "extend_kernel", object())],
    }
    results = {}
    for name, changes in cases.items():
        with contextlib.ExitStack() as stack:
            stack.enter_context(
                mock.patch.object(backend.kernel_dispatcher, "extend_kernel", kernel)
            )
            for change in changes:
                stack.enter_context(change)
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
    backend, rows = counted_gdn().rig.backend, chunk_tables.ChunkTables.MOST
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

    length = mock.patch.object(one_request, "chunk_length", return_value=flashinfer.chunk_length)
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


# -- what a replay does ----------------------------------------------------------------------------


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


@dataclasses.dataclass(frozen=True)
class OfRank(Batch):
    """A batch of one of two ranks of data-parallel attention.

    Attributes:
        other: tokens of the other rank, and its requests.
        idle: whether this rank has no request, and made one up.
    """

    other: tuple[int, int] = (0, 0)
    idle: bool = False


class Gathered(WithOne):
    """Replays of such batches, with what the scheduler has gathered from both ranks."""

    def captured(self, wanted: Replays) -> Runner:
        """By a runner that knows of the other rank."""
        module = importlib.import_module(f"{_EXECUTOR}.runner.prefill_cuda_graph_runner")
        gathers = property(lambda _: True, lambda *_: None)
        kind = module.PrefillCudaGraphRunner
        with mock.patch.object(kind, "require_mlp_tp_gather", gathers, create=True):
            return super().captured(wanted)

    def _replay(
        self, runner: Runner, wanted: Replays, batch: Batch, forward_batch: Any
    ) -> torch.Tensor:
        assert isinstance(batch, OfRank)
        tokens, requests = batch.other
        own = 0 if batch.idle else batch.tokens
        forward_batch.original_global_num_tokens_cpu = [own, tokens]
        forward_batch.global_num_tokens_for_logprob_cpu = [int(not batch.idle), requests]
        forward_batch.global_num_token_non_padded_cpu = own
        return super()._replay(runner, wanted, batch, forward_batch)


def of_a_rank() -> dict[str, Any]:
    """Compared replays of a rank, and which of them were of the graph of one request."""
    requests = ONE[0].batches[0].requests
    batches = (
        OfRank(requests, other=(5, 2)),  # it fits by itself, and the other rank's does not
        OfRank(requests, other=(5, 1)),
        OfRank((Request(1, 5, tracked=False),), other=(5, 1), idle=True),
    )
    ranks = Gathered(counted_gdn())
    wanted = Replays.of(*batches, left=frozenset({0}), rows=1)
    compared = alike(PREFILL_GRAPH, ranks.replayed, [wanted], most=None)
    return {"compared": compared, "one request": ranks.taken}


def many() -> int:
    """Replays of more requests than tables hold, of as many, and of more again."""
    play = Counted(Rig(requests=70, slots=160))
    most = chunk_tables.ChunkTables.MOST
    batches = [
        Batch(tuple(Request(1 + (n == 0), cached=n, tracked=False) for n in range(count)))
        for count in (most + 1, most, most + 2)
    ]
    wanted = Replays.of(*batches, left=frozenset({0, 2}))
    return alike(PREFILL_GRAPH, Captured(play).replayed, [wanted])


def broken() -> dict[str, str]:
    """What the proof says of a patch that is broken on purpose."""
    loaded = Loading.of(Batch((Request(3, 64, tracked=False),)))
    crossing = Replays(
        (Batch((Request(15, 3, tracked=False),)),), bucket=33, left=frozenset({0}), smaller=(8,)
    )

    def compared(wanted: Replays) -> int:
        return alike(PREFILL_GRAPH, Captured(counted_gdn()).replayed, [wanted])

    breaks: dict[str, tuple[Any, str, Any, Replays]] = {
        "no wait": (gdn_prefill_graph, "_wait_for_loads", lambda *_: None, loaded),
        "any tile": (chunk_tables, "tile", lambda _: 64, crossing),
    }
    return _found(breaks, compared)


def broken_breaks() -> dict[str, str]:
    """The same where the graph breaks at FlashInfer's kernel."""
    loaded = Loading.of(Batch((Request(3, 64, tracked=False),)), spare=2)
    kept = Replays.of(Batch((Request(70, 64, seqlen=129), Request(128, 64))), spare=3)
    live = kernel_break.live

    def changed(**wrong: Any) -> Any:
        return lambda *given: dataclasses.replace(live(*given), **wrong)

    def other_slots(*given: Any) -> Any:
        live_rows = live(*given)
        return dataclasses.replace(live_rows, slots=live_rows.slots + 1)

    def compared(wanted: Replays) -> int:
        return alike(PREFILL_GRAPH, WithBreaks(counted_gdn()).replayed, [wanted], most=None)

    breaks: dict[str, tuple[Any, str, Any, Replays]] = {
        "no wait": (gdn_prefill_graph, "_wait_for_loads", lambda *_: None, loaded),
        "all rows of the bucket": (kernel_break, "live", changed(tokens=5), loaded),
        "another slot": (kernel_break, "live", other_slots, loaded),
        "no state kept at chunks": (kernel_break, "live", changed(at_chunks=None), kept),
        "no state kept at the end": (kernel_break, "live", changed(final=None), kept),
    }
    return _found(breaks, compared)


def broken_one() -> dict[str, str]:
    """The same where the kernel of one request is in the graph."""
    one = one_request.OneRequest
    fill = one.fill

    def changed(name: str, by: int = 1) -> Any:
        def wrong(self: Any, *given: Any) -> None:
            fill(self, *given)
            getattr(self, name).add_(by).clamp_(min=0)

        return wrong

    def compared(wanted: Replays) -> int:
        return alike(PREFILL_GRAPH, WithOne(counted_gdn()).replayed, [wanted], most=None)

    def taken_if(**wrong: Any) -> Any:
        """`OneRequest.takes` by other numbers."""

        def wrongly(self: Any, *given: Any) -> bool:
            with mock.patch.multiple(self, **wrong):
                return bool(takes(self, *given))

        return wrongly

    takes, (wanted,) = one.takes, ONE[:1]
    breaks: dict[str, tuple[Any, str, Any, Replays]] = {
        "any split": (one, "takes", taken_if(_length=lambda _: 0), wanted),
        "another state at a chunk": (one, "fill", changed("source", -1), wanted),
        "another slot": (one, "fill", changed("slot"), wanted),
        "kept in another slot": (one, "fill", changed("target"), wanted),
        "another end": (one, "fill", changed("starts"), wanted),
        "rows past the end": (one_request, "prepare", _Everything(one_request.prepare), wanted),
    }
    return _found(breaks, compared)


class _Everything:
    """`one_request.prepare` as if the batch had all rows."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        def launch(*given: Any, **sizes: Any) -> None:
            ends = torch.full_like(given[4], given[11])
            self._kernel[grid](*given[:4], ends, *given[5:], **sizes)

        return launch


def _found(
    breaks: Mapping[str, tuple[Any, str, Any, Replays]], compared: Callable[[Replays], int]
) -> dict[str, str]:
    """Break → what the comparison says while an attribute of an owner is another."""
    errors = {}
    for name, (owner, attribute, wrong, wanted) in breaks.items():
        with mock.patch.object(owner, attribute, wrong):
            try:
                errors[name] = f"equal: {compared(wanted)}"
            except AssertionError as different:
                errors[name] = f"different: {different}"
        _off()
    return errors


@contextlib.contextmanager
def _live() -> Iterator[None]:
    """The patch is live within, and off after it."""
    sglang_perf_patches.activate(PREFILL_GRAPH, strict=True)
    try:
        yield
    finally:
        _off()


def _off() -> None:
    """Also after a comparison that failed within a replay, whose runner is in its traceback."""
    gc.collect()
    sglang_perf_patches.deactivate()
    assert engine.report() is None, engine.report()


def _runner(size: int) -> Runner:
    return Captured(counted_gdn()).captured(Replays((), size))
