"""The pieces of a speculative step that the mla patches shorten, as work that can be repeated.

Each is the installed sglang's own code on tensors of a GPU. FlashAttention's kernels take no part;
what they read does. Imported in the bench's own process only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from ..proof.mla import wheels
from ..proof.mla.cases import draft_batch, prepare, requests_of
from ..proof.mla.rig import furnished, model_runner, server_args
from ..proof.namespace import NoneByDefault

GPU = "cuda"

Made = tuple[Callable[[], object], Any]
"""What is timed, and what is compared."""

_ATTENTION = "sglang.srt.layers.attention"
_PUBLISHED: list[ExitStack] = []


@dataclass(frozen=True)
class Piece:
    """One row.

    Attributes:
        patch: its id.
        case: sizes, in words.
        make: builds it as the process is, with the patch live or not.
    """

    patch: str
    case: str
    make: Callable[[], Made]


def pieces(quick: bool) -> list[Piece]:
    """Every piece, of every patch."""
    every = [*_trtllm_drafts(), *_relays(), *_draft_extends(), *_eager_extends()]
    if not quick:
        return every
    first = {piece.patch: piece for piece in reversed(every)}
    return [piece for piece in every if piece is first[piece.patch]]


def _trtllm_drafts() -> Iterator[Piece]:
    for steps in (3, 4):
        for lengths in ([80_000], [32_768] * 16):
            case = _case(lengths, steps=steps)
            yield Piece("mla.draft-metadata", case, _trtllm_draft(lengths, steps))


def _relays() -> Iterator[Piece]:
    for count in (1, 64):
        yield Piece("mla.sync-opt-out", f"{count} requests, prefill elsewhere", _relay(count))


def _draft_extends() -> Iterator[Piece]:
    for count in (1, 16, 64):
        for context in (32_768, 131_072, 262_144):
            case = f"{_case([4096] * count)}, context of {context:,}"
            make = _draft_extend([4096] * count, context)
            yield Piece("mla.draft-extend-metadata", case, make)


def _eager_extends() -> Iterator[Piece]:
    for count in (1, 64):
        case = f"{_case([4096] * count)}, context of 131,072, eager draft-extend"
        yield Piece("mla.page-table-bound", case, _eager_extend([4096] * count, 131_072))


def _case(lengths: list[int], steps: int | None = None) -> str:
    count = f"{len(lengths)} request{'s' if len(lengths) > 1 else ''}"
    return f"{count}, {lengths[0]:,} tokens" + (f", {steps} steps" if steps else "")


def _publish(arguments: NoneByDefault, *modules: Any) -> None:
    """Publish a server's arguments until the next ones are."""
    while _PUBLISHED:
        _PUBLISHED.pop().close()
    stack = ExitStack()
    stack.enter_context(furnished(arguments, *(module.__name__ for module in modules)))
    _PUBLISHED.append(stack)


def _trtllm_draft(lengths: list[int], steps: int) -> Callable[[], Made]:
    """Preparing the replay of a TRT-LLM MLA draft."""

    def make() -> Made:
        module, parent = wheels.trtllm()
        arguments = server_args(speculative_num_steps=steps, page_size=64)
        _publish(arguments, module, parent)
        runner = _runner(arguments, lengths, 1920, mla=True)
        backend = module.TRTLLMMLAMultiStepDraftBackend(runner, 1, steps)
        act = _replay(backend, runner, lengths)
        metadata = [step.decode_cuda_graph_metadata[len(lengths)] for step in backend.attn_backends]
        act()
        return _republished(act, arguments, module, parent), [
            held.block_kv_indices.clone() for held in metadata
        ]

    return make


def _draft_extend(lengths: list[int], context: int) -> Callable[[], Made]:
    """A draft-extend by graph, by stock's own runner; of the graph, the metadata's kernel."""

    def make() -> Made:
        flash = import_module("sglang_perf_patches.proof.mla.flash")
        extends = import_module("sglang_perf_patches.sets.mla.draft_extend_metadata.proof")
        count = len(lengths)
        arguments, runner, backend = _flash(flash, count, context, extends.runners)
        graphs = extends.make(runner, backend, count)
        graphs.capture_bs = [count]
        batch = extends.in_graph(graphs, count)
        backend.init_forward_metadata_in_graph(batch)  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            backend.init_forward_metadata_in_graph(batch)
        rows = torch.zeros(count * flash.DRAFT, 2, device=GPU)
        out = NoneByDefault(next_token_logits=rows, hidden_states=rows)

        def replay(_key: Any, _batch: Any) -> Any:
            graph.replay()
            return out

        graphs.backend = NoneByDefault(replay=replay)
        act = extends.replaying(graphs, runner, lengths)
        act()
        metadata = backend.draft_extend_metadata[count]
        seen = list(flash.read(metadata, 1, count).items())
        return _republished(act, arguments, flash.module, extends.runners), seen

    return make


def _eager_extend(lengths: list[int], context: int) -> Callable[[], Made]:
    """Preparing an eager draft-extend."""

    def make() -> Made:
        flash = import_module("sglang_perf_patches.proof.mla.flash")
        count = len(lengths)
        arguments, runner, backend = _flash(flash, count, context)
        backend.init_cuda_graph_state(count, count * flash.DRAFT)
        batch = flash.batch(runner, flash.EXTEND, lengths)

        def act() -> None:
            backend.init_forward_metadata(batch)

        act()
        seen = list(flash.read(backend.forward_metadata, 1, count).items())
        return _republished(act, arguments, flash.module), seen

    return make


def _flash(flash: Any, count: int, context: int, *modules: Any) -> tuple[Any, Any, Any]:
    """Published arguments, a runner of so many requests, and its FlashAttention backend."""
    arguments = flash.arguments(1)
    _publish(arguments, flash.module, *modules)
    runner = flash.runner_of(1, context=context, requests=max(count, 2), device=GPU)
    return arguments, runner, flash.make(runner)


def _runner(args: NoneByDefault, lengths: list[int], room: int, **kwargs: Any) -> NoneByDefault:
    return model_runner(
        args,
        device=GPU,
        context=lengths[0] + room,
        requests=max(len(lengths), 2),
        **kwargs,
    )


def _replay(backend: Any, runner: NoneByDefault, lengths: list[int]) -> Callable[[], None]:
    """Capture a draft's graph; what prepares its replay."""
    count = len(lengths)
    backend.init_cuda_graph_state(count, count)
    prepare(backend, draft_batch(runner, [1] * count, capture=True), capture=True)
    batch = draft_batch(runner, lengths)
    return lambda: prepare(backend, batch)


def _republished(
    act: Callable[[], object], arguments: NoneByDefault, *modules: Any
) -> Callable[[], object]:
    """The work, under the arguments that it was made with."""
    mine: list[ExitStack] = []

    def again() -> object:
        if not mine or not _PUBLISHED or _PUBLISHED[-1] is not mine[0]:
            _publish(arguments, *modules)
            mine[:] = _PUBLISHED
        return act()

    return again


def _relay(count: int) -> Callable[[], Made]:
    """Bringing the lengths of a finished verify to the next step, by the release's own relay."""

    def make() -> Made:
        module = import_module(f"{_ATTENTION}.triton_backend")
        hybrid = import_module(f"{_ATTENTION}.hybrid_attn_backend")
        parent = wheels.flashinfer_mla()
        overlap: Any = import_module("sglang.srt.managers.overlap_utils")
        algorithm = import_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm.EAGLE
        arguments = server_args(
            disable_piecewise_cuda_graph=False,
            speculative_attention_mode="decode",
            get_model_config=lambda: NoneByDefault(hf_text_config=NoneByDefault()),
        )
        _publish(arguments, module, hybrid, parent, overlap)
        runner = model_runner(arguments, mla=True, device=GPU, requests=max(count, 2))
        backend = module.TritonAttnBackend(runner)
        prefills = parent.FlashInferMLAAttnBackend(runner)
        target = hybrid.HybridAttnBackend(runner, prefills, backend)
        needed = overlap.decide_needs_cpu_seq_lens(arguments, (target, backend, backend))
        future = overlap.FutureMap(
            torch.device(GPU), algorithm, runner.req_to_token_pool, needs_cpu_seq_lens=needed
        )
        requests = requests_of(runner, count)
        lengths = torch.arange(count, device=GPU) * 37 % 100 + 1
        batch = NoneByDefault(
            spec_info=NoneByDefault(future_indices=requests),
            req_pool_indices=requests,
            req_pool_indices_cpu=requests.cpu(),
        )

        def act() -> None:
            future.publish(requests, lengths)
            future.resolve_seq_lens_cpu(batch)

        act()
        return act, [batch.seq_lens.clone()]

    return make
