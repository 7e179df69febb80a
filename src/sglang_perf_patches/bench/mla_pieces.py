"""The pieces of a speculative step that the mla patches shorten, as work that can be repeated.

Each is the installed sglang's own code on tensors of a GPU. FlashAttention's kernels take no part;
what they read does. Imported in the bench's own process only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from sglang.srt.speculative import eagle_utils, eagle_worker_v2

from ..proof.mla import wheels
from ..proof.mla.batches import draft_batch, prepare, requests_of
from ..proof.mla.rig import Room, furnished, model_runner, server_args

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
        mask_bytes: of the made piece's mask, where it has one.
    """

    patch: str
    case: str
    make: Callable[[], Made]
    mask_bytes: Callable[[], int] | None = None


def pieces(quick: bool) -> list[Piece]:
    """Every piece, of every patch."""
    found = [*_trtllm_drafts(), *_masks(), *_relays(), *_flash_attention_drafts()]
    found += [*_draft_extends(), *_eager_extends()]
    if not quick:
        return found
    first = {piece.patch: piece for piece in reversed(found)}
    return [piece for piece in found if piece is first[piece.patch]]


def _trtllm_drafts() -> Iterator[Piece]:
    for steps in (3, 4):
        for lengths in ([80_000], [32_768] * 16):
            case = _case(lengths, steps=steps)
            yield Piece("mla.draft-metadata", case, _trtllm_draft(lengths, steps))


def _masks() -> Iterator[Piece]:
    sizes = ((128, 4, 131_072), (512, 4, 163_840), (128, 5, 131_072))
    for captured, draft, context in sizes:
        for bs in (1, 64):
            size: list[int] = []
            yield Piece(
                "mla.verify-mask-fill",
                f"mask for {captured} x {draft} x {context:,}, {bs} requests",
                _tree(captured, draft, context, bs, size),
                partial(size.__getitem__, -1),
            )


def _relays() -> Iterator[Piece]:
    for count in (1, 64):
        yield Piece("mla.sync-opt-out", f"{count} requests, prefill elsewhere", _relay(count))


def _flash_attention_drafts() -> Iterator[Piece]:
    for lengths in ([80_000], [32_768] * 64, [16_384] * 256):
        for steps in (3, 5):
            make = _flash_attention_draft(lengths, steps)
            yield Piece("mla.shared-draft-tables", _case(lengths, steps=steps), make)


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


def _publish(arguments: Room, *modules: Any) -> None:
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


def _flash_attention_draft(lengths: list[int], steps: int) -> Callable[[], Made]:
    """Preparing the replay of a FlashAttention draft with topk = 1."""

    def make() -> Made:
        module = import_module(f"{_ATTENTION}.flashattention_backend")
        arguments = server_args(speculative_num_steps=steps, speculative_num_draft_tokens=steps + 1)
        _publish(arguments, module)
        runner = _runner(arguments, lengths, 64, is_draft_worker=True)
        backend = module.FlashAttentionMultiStepBackend(runner, 1, steps)
        act = _replay(backend, runner, lengths)
        act()
        seen = []
        for step in backend.attn_backends:
            metadata = step.decode_cuda_graph_metadata[len(lengths)]
            reads = metadata.cache_seqlens_int32.tolist()
            rows = zip(metadata.page_table, reads, strict=True)
            seen.append([metadata.cache_seqlens_int32.clone(), metadata.cu_seqlens_k.clone()])
            seen.append([row[:count].clone() for row, count in rows])
        return _republished(act, arguments, module), seen

    return make


def _draft_extend(lengths: list[int], context: int) -> Callable[[], Made]:
    """A draft-extend by graph, by stock's own runner; of the graph, the metadata's kernel."""

    def make() -> Made:
        flash = import_module("sglang_perf_patches.proof.mla.flash")
        extends = import_module("sglang_perf_patches.proof.mla.draft_extend_metadata")
        arguments = flash.arguments(1)
        _publish(arguments, flash.module, extends.runners)
        count = len(lengths)
        runner = flash.runner_of(1, context=context, requests=max(count, 2), device=GPU)
        backend = flash.make(runner)
        graphs = extends.make(runner, backend, count)
        graphs.capture_bs = [count]
        batch = extends.in_graph(graphs, count)
        backend.init_forward_metadata_in_graph(batch)  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            backend.init_forward_metadata_in_graph(batch)
        rows = torch.zeros(count * flash.DRAFT, 2, device=GPU)
        out = Room(next_token_logits=rows, hidden_states=rows)

        def replay(_key: Any, _batch: Any) -> Any:
            graph.replay()
            return out

        graphs.backend = Room(replay=replay)
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
        arguments = flash.arguments(1)
        _publish(arguments, flash.module)
        count = len(lengths)
        runner = flash.runner_of(1, context=context, requests=max(count, 2), device=GPU)
        backend = flash.make(runner)
        backend.init_cuda_graph_state(count, count * flash.DRAFT)
        batch = flash.batch(runner, flash.EXTEND, lengths)

        def act() -> None:
            backend.init_forward_metadata(batch)

        act()
        seen = list(flash.read(backend.forward_metadata, 1, count).items())
        return _republished(act, arguments, flash.module), seen

    return make


def _runner(arguments: Room, lengths: list[int], room: int, **more: Any) -> Room:
    return model_runner(
        arguments,
        device=GPU,
        context=lengths[0] + room,
        requests=max(len(lengths), 2),
        **more,
    )


def _replay(backend: Any, runner: Room, lengths: list[int]) -> Callable[[], None]:
    """Capture a draft's graph; what prepares its replay."""
    count = len(lengths)
    backend.init_cuda_graph_state(count, count)
    prepare(backend, draft_batch(runner, [1] * count, capture=True), capture=True)
    batch = draft_batch(runner, lengths)
    return lambda: prepare(backend, batch)


def _republished(act: Callable[[], object], arguments: Room, *modules: Any) -> Callable[[], object]:
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
            get_model_config=lambda: Room(hf_text_config=Room()),
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
        batch = Room(
            spec_info=Room(future_indices=requests),
            req_pool_indices=requests,
            req_pool_indices_cpu=requests.cpu(),
        )

        def act() -> None:
            future.publish(requests, lengths)
            future.resolve_seq_lens_cpu(batch)

        act()
        return act, [batch.seq_lens.clone()]

    return make


def _tree(captured: int, draft: int, context: int, bs: int, size: list[int]) -> Callable[[], Made]:
    """Building the trees of a verify in the backend's preallocated mask."""

    def make() -> Made:
        module = import_module(f"{_ATTENTION}.triton_backend")
        arguments = server_args(speculative_num_draft_tokens=draft)
        _publish(arguments, module, eagle_worker_v2)
        runner = model_runner(
            arguments, mla=True, device=GPU, context=64, requests=max(captured, 2)
        )
        runner.model_config.context_len = context
        backend = module.TritonAttnBackend(runner)
        # A graph's KV indices are not measured, and would take gigabytes.
        small = torch.zeros(1, dtype=torch.int64, device=GPU)
        backend.init_cuda_graph_state(captured, captured * draft, kv_indices_buf=small)
        has_masks = hasattr(type(backend), "verify_mask")
        buffer = (
            backend.verify_mask.buffer
            if has_masks
            else backend.get_verify_buffers_to_fill_after_draft()[0]
        )
        size.append(buffer.nbytes)
        given = _chains(bs, draft)

        def act() -> Any:
            if has_masks:
                mask = backend.verify_mask
                return eagle_utils.build_tree_kernel_efficient(
                    *given, mask.mode, mask.buffer, fill_prefix_mask=mask.is_read
                )
            room, positions = backend.get_verify_buffers_to_fill_after_draft()
            mode = eagle_utils.TreeMaskMode.FULL_MASK
            return eagle_utils.build_tree_kernel_efficient(*given, mode, room, positions)

        made = act()
        torch.cuda.synchronize()
        cells: list[torch.Tensor] = []
        at = 0
        for length in given[4].tolist():
            rows = made[0][at : at + draft * (length + draft)].reshape(draft, length + draft)
            cells.append(rows[:, length:].to(torch.uint8).clone())
            at += rows.numel()
        again = _republished(act, arguments, module, eagle_worker_v2)
        return again, [*cells, *(value.clone() for value in made[1:])]

    return make


def _chains(bs: int, draft: int) -> tuple[Any, ...]:
    """A tree builder's arguments: two branches if there is room for them, else a chain."""
    nodes = [0, 1, 2, 4] if draft == 5 else list(range(draft - 1))
    parents = [-1, 0, 1] if draft == 5 else list(range(-1, draft - 2))
    topk, steps = (2, 2) if draft == 5 else (1, draft - 1)
    return (
        torch.zeros(bs, dtype=torch.int64, device=GPU),
        torch.tensor([parents] * bs, device=GPU),
        torch.tensor([nodes] * bs, device=GPU),
        torch.zeros((bs, draft - 1), dtype=torch.int64, device=GPU),
        torch.arange(bs, device=GPU) * 37 % 900 + 1000,
        0,
        topk,
        steps,
        draft,
    )
