"""``mamba.gdn-prefill-graph``: gated-delta-net layers inside the breakable prefill graph.

Stock has the mechanism: it captures a linear backend with the rest of the model if that backend
runs its prefill on static tables, as KDA's does. Here the gated delta net's does too. Its own
``forward_extend`` runs unchanged, on metadata whose tensors are `prefill_tables.Tables`. What
depends on the batch's shapes, keeping tracked states, is done next to it.

There are two kinds of tables. With Triton's kernel (`ChunkTables`) the whole layer is captured.
FlashInfer's kernel picks its algorithm by the batch. So the graph breaks at the kernel's call, and
all else of the layer is captured (`kernel_break`). A second graph also has that call, for a batch
of one request.

A batch that the tables can't hold replays a second graph of its bucket, which is stock's own with
its breaks. Buckets that gain little have stock's graph only.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from ....model.patching import Patching
from ..references import ATTENTION, BASE, GDN
from . import BREAKABLE, FLA, HYBRID_BACKEND, PATCH, RUNNER, TABLES

SHORT = 2048
"""Tokens up to which layers are captured. The kernels of longer prefills take longer than their
launches, so nothing is gained, and the graphs of those take most of the memory."""
_ANNOUNCED: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""Stock's hybrid backends whose layers may be captured → what their ranks have announced. A runner
holds one for as long as it may replay what it captured."""
_CAPTURING = "_sglang_perf_patches_capturing"
"""On a backend while layers are captured on tables: returns the metadata for a batch."""


@PATCH.setup()
def setup(patch):
    patch.drain(
        lambda: not len(_ANNOUNCED),
        "no model runner is left that may replay prefill graphs that were captured with it",
    )


@PATCH.makes(f"{GDN}.prefill_graph_max_seqs", adds=True)
def prefill_graph_max_seqs(patch, stock):
    """Any number: what tables don't hold, stock's graph does."""


def _known(part: str, _: Patching, stock: Any) -> Any:
    """A function of stock's that finds the tables of static offsets, or computes those of a batch.

    A bucket of less than a chunk uses smaller chunks, of which each request still has one.
    """
    from . import prefill_tables  # noqa: F401  (before the patch is live: it may fail)

    def prepare(cu_seqlens: Any, chunk_size: int) -> Any:
        tables = _tables_of(cu_seqlens)
        return stock(cu_seqlens, chunk_size) if tables is None else getattr(tables, part)

    return prepare


PATCH.makes(f"{FLA}.index:prepare_chunk_indices")(partial(_known, "chunks"))
PATCH.makes(f"{FLA}.index:prepare_chunk_offsets")(partial(_known, "chunk_starts"))


# -- at boot --------------------------------------------------------------------------------------


def tables_for(backend: Any) -> Any:
    """The class of tables for the prefill kernel of a GDNAttnBackend; None if it has none."""
    from .kernel_break import BreakTables
    from .prefill_tables import ChunkTables

    kinds = {"TritonGDNKernel": ChunkTables, "FlashInferGDNKernel": BreakTables}
    return kinds.get(type(backend.kernel_dispatcher.extend_kernel).__name__)


def unserved(backend: Any, modules: Any) -> str | None:
    """Why a GDNAttnBackend's prefill stays as stock runs it; None if it can be captured."""
    cache = backend.req_to_token_pool.mamba_pool.mamba_cache
    tables = tables_for(backend)
    if type(backend) is not modules(f"{ATTENTION}.linear.gdn_backend").GDNAttnBackend:
        return f"{type(backend).__name__} runs other kernels"
    if modules("sglang.srt.environ").envs.SGLANG_DISABLE_KDA_PREFILL_GRAPH_EXTEND.get():
        return "SGLANG_DISABLE_KDA_PREFILL_GRAPH_EXTEND is set"
    if not all(held[0].is_contiguous() for held in (*cache.conv, cache.temporal)):
        return "the states of a layer are not contiguous"
    if tables is None:
        own = type(backend.kernel_dispatcher.extend_kernel).__name__
        return f"{own} was not captured in any proof"
    reason: str | None = tables.unserved(backend, modules)
    return reason


@PATCH.replaces(f"{GDN}.supports_prefill_graph_extend", adds=True)
def supports_prefill_graph_extend(self, *, patch):
    if self.is_draft_worker:
        return False  # its target model may still be captured
    reason = unserved(self, patch.module)
    if reason is not None:
        patch.gate(reason)
    return reason is None


@PATCH.replaces(f"{HYBRID_BACKEND}.__init__")
def init(self, *args, patch, stock, **kwargs):
    stock(self, *args, **kwargs)
    takes_part = self.use_captured_forward_metadata_for_breakable_cuda_graph
    backend = self.linear_attn_backend
    if takes_part and isinstance(backend, patch.get(GDN)):
        from ...graphs import MOST, announce
        from .kernel_break import flashinfer_version

        tables = tables_for(backend)
        rows = tables.most(backend, patch.module)
        state = (SHORT, MOST, tables.__name__, rows, flashinfer_version())
        _ANNOUNCED[self] = announce(PATCH.id, state)


@PATCH.replaces(f"{RUNNER}.capture_one_shape")
def capture_one_shape(self, size, *, patch, stock, **kwargs):
    """Capture a bucket on tables, and as stock does it if some of its batches don't fit."""
    from ...graphs import agree, may_have_further, without_warm_up

    hybrid = self.model_runner.attn_backend
    announced = _ANNOUNCED.get(hybrid) if self.use_captured_attn_metadata else None
    if announced is not None and not agree(announced, self.backend._tp_group.ranks):
        patch.gate("a rank of this server runs stock's code here")
        announced = None
    if announced is None or size > SHORT:
        stock(self, size, **kwargs)
        return
    backend = hybrid.linear_attn_backend
    graphs, inputs = self.backend._graphs, self.backend._capture_inputs
    held: list[Any] = []  # graphs keep addresses of the inputs, and stock those of the last one

    def capture() -> Any:
        """Capture the bucket's next graph, and return its key."""
        before = dict(graphs)
        stock(self, size, **kwargs)
        (key,) = (key for key, graph in graphs.items() if graph is not before.get(key))
        held.append(inputs.get(key))
        return key

    stocks = one = None
    if _leaves_some(self, size, tables_for(backend).most(backend, patch.module), backend):
        stocks = graphs[capture()]
    with _on_tables(backend, partial(_metadata, patch, backend, stocks is None)):
        key = capture()
    ours, metadata = graphs[key], self.attn_metadata_buffers[key]
    if may_have_further(self, size) and _tables_of(metadata).prepare_one(backend, patch.module):
        current = patch.module(BREAKABLE)._current_capture_var
        with _on_tables(backend, lambda _: metadata), without_warm_up(self, current, backend):
            stock(self, size, **kwargs)
        one = graphs[key]
    if stocks or one:
        graphs[key] = _Either(backend, ours, stocks, one, held)


def _leaves_some(runner: Any, size: int, rows: int, backend: Any) -> bool:
    """Whether a bucket gets batches that its tables do not fit: see `Tables.holds`."""
    least = 1  # with DP attention, all ranks replay the bucket of the one with the most tokens
    if not runner.require_mlp_tp_gather:
        least += max((other for other in runner.capture_num_tokens if other < size), default=0)
    most = min(size, backend.req_to_token_pool.size)
    return rows < most or not tables_for(backend).rounds_alike(least, size)


@contextlib.contextmanager
def _on_tables(backend: Any, metadata: Any) -> Iterator[None]:
    setattr(backend, _CAPTURING, metadata)
    try:
        yield
    finally:
        delattr(backend, _CAPTURING)


@dataclass(eq=False)
class _Either:
    """The graphs of a bucket: replays the one that the metadata of a batch is made for."""

    backend: Any
    ours: Any
    stocks: Any
    one: Any
    held: Any

    def replay(self) -> None:
        tables = _tables_of(self.backend.forward_metadata)
        if tables is None:
            self.stocks.replay()
        else:
            (self.one if tables.has_one else self.ours).replay()


@PATCH.replaces(f"{GDN}.init_prefill_graph_metadata", adds=True)
def init_prefill_graph_metadata(self, forward_batch, *, patch):
    """The tables of a bucket, made before its capture and filled with the batch of it."""
    if not hasattr(self, _CAPTURING):
        self.init_forward_metadata(forward_batch)
        return None  # stock breaks the graph at the layers, as usual
    metadata = getattr(self, _CAPTURING)(forward_batch)
    _fill(patch, self, metadata, forward_batch)
    return metadata


def _metadata(patch: Patching, backend: Any, alone: bool, forward_batch: Any) -> Any:
    """Stock's metadata, of tables; it tracks no row, and yet a layer hands over its states."""
    exec_context = patch.module("sglang.srt.runtime_context").get_exec()
    kind = tables_for(backend)
    tables = kind(
        tokens=forward_batch.extend_num_tokens,
        requests=kind.most(backend, patch.module),
        block=patch.module(f"{ATTENTION}.linear.gdn_backend").CAUSAL_CONV1D_FWD_BLOCK_M,
        tracks=exec_context.mamba.enable_mamba_extra_buffer,
        slots_like=backend.req_to_token_pool.get_mamba_indices(forward_batch.req_pool_indices),
    )
    tables.alone = alone
    module = patch.module(f"{ATTENTION}.mamba.mamba2_metadata")
    nothing = tables.starts.new_empty(0).long()
    metadata = module.ForwardMetadata(
        query_start_loc=tables.starts,
        mamba_cache_indices=tables.slots,
        conv_block_table=tables.blocks,
        has_mamba_track_mask=tables.tracks,
        track_conv_indices=nothing.view(0, backend.conv_states_shape[-1]),
        conv_states_mask_indices=nothing,
        track_ssm_h_src=nothing,
    )
    setattr(metadata, TABLES, tables)
    return metadata


# -- before a replay ------------------------------------------------------------------------------


@PATCH.replaces(f"{GDN}.refresh_prefill_graph_metadata", adds=True)
def refresh_prefill_graph_metadata(self, meta, forward_batch, *, patch):
    tables = _tables_of(meta)
    if not tables.alone and not _all_fit(tables, forward_batch):
        self.init_forward_metadata(forward_batch)  # for the breaks of stock's graph
        return
    _fill(patch, self, meta, forward_batch)
    _wait_for_loads(self, tables)
    patch.ran.seen = True


def _all_fit(tables: Any, forward_batch: Any) -> bool:
    """Whether the batch fits the tables and, with DP attention, so does that of each other rank.

    All ranks must replay the same one of a bucket's graphs: a captured all-reduce reads the memory
    of the other ranks at the addresses of that graph. The scheduler has gathered each rank's tokens
    and its rows of logits, of which a request has at least one.
    """
    tokens = getattr(forward_batch, "original_global_num_tokens_cpu", None)
    if tokens is None:
        lens = forward_batch.extend_seq_lens_cpu
        return bool(tables.holds(sum(lens), len(lens)))
    return all(map(tables.holds, tokens, forward_batch.global_num_tokens_for_logprob_cpu))


def _fill(patch: Patching, backend: Any, metadata: Any, forward_batch: Any) -> None:
    from .. import host

    tables = _tables_of(metadata)
    if host.is_debugging():
        host.prefill(forward_batch)  # compares the lists with the device
    lens = list(forward_batch.extend_seq_lens_cpu)
    prefixes = list(forward_batch.extend_prefix_lens_cpu)
    if forward_batch.global_num_token_non_padded_cpu == 0:
        lens, prefixes = [], []  # an idle rank's made up request, which stock's layers skip
    # First: it translates the slots that are tracked.
    slots = tables.begin(backend, forward_batch, sum(lens))[: len(lens)]
    tracked = _tracked(patch, backend, forward_batch, lens, prefixes) if lens else None
    tables.fill(lens, prefixes, slots, tracked)
    backend.forward_metadata = metadata
    backend._init_target_verify_qkv_routing(forward_batch)  # as stock before any prefill
    backend.mis_metadata = None


def _tracked(
    patch: Patching, backend: Any, forward_batch: Any, lens: list[int], prefixes: list[int]
) -> Any:
    """Stock's own selection of the rows, which needs the lists only."""
    from .prefill_tables import AT_CHUNK, FINAL, NOTHING, Tracked

    if forward_batch.mamba_track_mask is None:
        return None
    if backend._has_cpu_prefill_track_metadata(forward_batch):
        mask = forward_batch.mamba_prefill_track_mask_cpu
        seqlens = forward_batch.mamba_track_seqlens_cpu
    else:  # a mixed batch, or the capture's own; stock queries the device too
        mask = forward_batch.mamba_track_mask[: len(lens)].tolist()
        if not any(mask):
            return None
        seqlens = forward_batch.mamba_track_seqlens[: len(lens)].tolist()
    plan = patch.module(f"{ATTENTION}.mamba.prefill_track_metadata").build_prefill_track_plan(
        mask, seqlens, lens, prefixes, backend.mamba_chunk_size, mamba2=False
    )
    if not plan.tracked_rows:
        return None
    aligned = patch.module("sglang.srt.runtime_context").mamba_cache_chunk_size()
    kept, windows = [NOTHING] * len(lens), [0] * len(lens)
    for row in plan.final_rows:
        kept[row] = FINAL
    for row, chunk in zip(plan.h_rows, plan.h_src, strict=True):
        kept[row] = AT_CHUNK + chunk
    for row in plan.tracked_rows:
        end = sum(lens[:row]) + (seqlens[row] - prefixes[row]) // aligned * aligned
        windows[row] = end - backend.conv_states_shape[-1]
    return Tracked(kept, windows, forward_batch.mamba_track_indices)


def _wait_for_loads(backend: Any, tables: Any) -> None:
    """With a hierarchical cache, wait until the states of a request are in its own slots."""
    from ...graphs import wait_for_loads

    pool = backend.req_to_token_pool
    wait_for_loads(pool.layer_transfer_counter, pool.mamba2_layer_cache, tables.layers)


# -- within the graph -----------------------------------------------------------------------------
#
# A capture keeps the kernels of a layer, with the addresses of their arguments, and drops its
# Python: a replay decides nothing. This is what the Python of an eager layer does besides launching
# kernels, from RadixLinearAttention down, and what does it for a replay:
#
# | dropped by the capture | at a replay |
# | --- | --- |
# | the pool waits until the layer's states are loaded | `_wait_for_loads`, of all layers, before |
# | input and output are cut to the batch's tokens | all tokens of the bucket; unused rows stay 0 |
# | ``out_cache_loc`` is narrowed, and put back | nothing: it is as before |
# | branches by mode, prefixes, lengths, tracked rows | `Tables`; plain and mixed prefills only |
# | chunk functions look up their last result by tensor | `_known`: offsets have it |
# | ``chunk_fwd_o`` picks its tile by the tokens | `Tables.holds`, else stock's own graph |
# | routing of verifies, items, translated slots | `_fill`: before the layers, as in stock |
# | a line of SGLANG_KERNEL_API_LOGLEVEL for each call | missing, as for any graph |
#
# `verify.mamba.gdn_prefill_graph` replays what was captured only, and compares all of these with
# stock's.


@dataclass
class _Prefixes:
    """In place of ``extend_prefix_lens``, of which a layer uses only ``> 0``."""

    has_state: Any

    def __gt__(self, _zero: object) -> Any:
        return self.has_state


@PATCH.replaces(f"{GDN}.forward_extend")
def forward_extend(self, layer, forward_batch, mixed_qkv, a, b, *, patch, stock, **rest):
    tables = _tables_of(self.forward_metadata)
    if tables is None or forward_batch.forward_mode.is_target_verify():
        return stock(self, layer, forward_batch, mixed_qkv, a, b, **rest)
    if layer.layer_id not in tables.layers:
        tables.layers.append(layer.layer_id)
    # As in stock: before the convolution.
    tables.keep_windows(
        mixed_qkv, self.req_to_token_pool.mamba2_layer_cache(layer.layer_id).conv[0]
    )
    # A copy, because the other layers of the model read the same batch.
    static = copy.copy(forward_batch)
    static.extend_prefix_lens = _Prefixes(tables.has_state)
    static.extend_seq_lens_cpu = None
    dispatcher = self.kernel_dispatcher
    own = dispatcher.extend_kernel
    dispatcher.extend_kernel = tables.kernel(self, patch.module)
    try:
        return stock(self, layer, static, mixed_qkv, a, b, **rest)
    finally:
        dispatcher.extend_kernel = own


@PATCH.replaces(f"{BASE}._track_mamba_state_extend")
def _track_mamba_state_extend(self, forward_batch, h, states, metadata, *more, stock, **rest):
    tables = _tables_of(metadata)
    if tables is None:
        return stock(self, forward_batch, h, states, metadata, *more, **rest)
    return tables.keep_states(h, states)


@PATCH.replaces(f"{GDN}.prefill_graph_extend_active", adds=True)
def prefill_graph_extend_active(self):
    """Whether the prefill that is captured or replayed has tables."""
    return _tables_of(self.forward_metadata) is not None


def _tables_of(held: Any) -> Any:
    return getattr(held, TABLES, None)
