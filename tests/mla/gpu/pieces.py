"""The pieces that the patches remove, each to be timed on stock and patched in turn.

Every piece is first compared: what the kernels read must be equal bit for bit.
"""

from __future__ import annotations

import json
import statistics
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import lent
import torch
from liveness import differs, live
from rooms import Batch, Room, furnished, model_runner, server_args
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative import eagle_utils, eagle_worker_v2
from sglang.srt.speculative.eagle_info import EagleDraftInput

from sglang_perf_patches import sets, source, verdict

ROUNDS = 3
GPU = "cuda"
MLA = {item.name: item for item in sets.load()}["mla"]
TREE = source.Tree(source.find_installed())
WORDS = {item.patch.id: item.word for item in verdict.judge_all([MLA], TREE)}

Side = Callable[[], tuple[Callable[[], None], Any]]
"""Makes what is timed, and gives what to compare."""


def compare(patch: str, label: str, make: Side, *, stall: bool = False) -> None:
    """Time a piece on both sides in turn and print one line of JSON."""
    if WORDS.get(patch) != "applies":
        return
    BYTES.clear()
    made: dict[bool, Callable[[], None]] = {}
    only(patch)
    times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    equal = None
    try:
        for _ in range(ROUNDS):
            for patched in (False, True):
                with live(patch) if patched else nullcontext():
                    if patched not in made:
                        made[patched], seen = make()
                        if not patched:
                            stock = seen
                        else:
                            difference = differs(stock, seen)
                            equal = difference is None
                            if not equal:
                                print("DIFFERS", patch, label, difference, flush=True)
                    act = made[patched]
                    times[patched].append(_stall(act) if stall else _time(act))
    except Exception as error:
        traceback.print_exc()
        put({"patch": patch, "case": label, "error": f"{type(error).__name__}: {error}"[:400]})
        return
    found: dict[str, Any] = {"patch": patch, "case": label, "equal": equal}
    if BYTES:
        found["mask_bytes"] = {"stock": BYTES[0], "patched": BYTES[-1]}
    for name, place in (("call_us", 0), ("host_us", 1)):
        one = statistics.median(time[place] for time in times[False])
        other = statistics.median(time[place] for time in times[True])
        found[name] = {"stock": round(one, 1), "patched": round(other, 1)}
        found[name]["ratio"] = round(other / one, 3)
    found["all_us"] = {
        "stock": [[round(value, 1) for value in pair] for pair in times[False]],
        "patched": [[round(value, 1) for value in pair] for pair in times[True]],
    }
    put(found)


def only(id: str) -> None:
    """Have the activation judge this patch and its needs alone, in a tree that is parsed once."""
    needed = {id}.union(*(patch.requires for patch in MLA.patches if patch.id == id))
    patches = tuple(patch for patch in MLA.patches if patch.id in needed)
    sets.load = lambda: (replace(MLA, patches=patches),)  # type: ignore[assignment]
    source.Tree = lambda _root: TREE  # type: ignore[misc, assignment]


def put(found: dict[str, Any]) -> None:
    """Print a result and keep it."""
    found = {"release": TREE.version, **found}
    RESULTS.append(found)
    print(json.dumps({k: v for k, v in found.items() if k != "all_us"}), flush=True)


def _time(act: Callable[[], None], count: int = 50) -> tuple[float, float]:
    """Microseconds per call: back to back on the GPU's clock, and on the host's alone."""
    for _ in range(5):
        act()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    started = time.perf_counter()
    for _ in range(count):
        act()
    host = time.perf_counter() - started
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / count, host * 1e6 / count


def _stall(act: Callable[[], None], count: int = 20) -> tuple[float, float]:
    """Microseconds that a call keeps the host behind 2.8 ms of queued work; twice the same."""
    act()
    torch.cuda.synchronize()
    found = []
    for _ in range(count):
        torch.cuda._sleep(CYCLES)
        started = time.perf_counter()
        act()
        found.append((time.perf_counter() - started) * 1e6)
        torch.cuda.synchronize()
    return (statistics.median(found),) * 2


def _cycles() -> int:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1000)
    begin.record()
    torch.cuda._sleep(10_000_000)
    end.record()
    torch.cuda.synchronize()
    return int(10_000_000 * 2.8 / begin.elapsed_time(end))


def batch_of(runner: Any, lengths: list[int], topk: int = 1, capture: bool = False) -> Any:
    """A draft batch on the GPU."""
    seq_lens = torch.tensor(lengths, dtype=torch.int64, device=GPU)
    count = len(lengths)
    starts = seq_lens.new_zeros(count) if capture else seq_lens
    spec_info = EagleDraftInput(topk_p=torch.zeros(count, topk, device=GPU))
    spec_info.kv_indptr = spec_info.kv_indices = None
    return Batch(
        batch_size=count,
        forward_mode=ForwardMode.DECODE,
        req_pool_indices=torch.arange(count, device=GPU),
        req_to_token_pool=runner.req_to_token_pool,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens.cpu(),
        seq_lens_sum=sum(lengths),
        positions=starts.repeat_interleave(topk),
        spec_info=spec_info,
        encoder_lens=None,
        out_cache_loc=torch.arange(count * topk * 8, device=GPU),
        kv_loc_plan=None,
        global_num_tokens_cpu=None,
        _original_batch_size=None,
    )


def prepare(backend: Any, batch: Any, capture: bool = False) -> None:
    """Prepare a draft's graph, by the entry that the release has."""
    if not hasattr(backend, "init_forward_metadata_out_graph"):
        if capture:
            backend.init_forward_metadata_capture_cuda_graph(batch)
        else:
            backend.init_forward_metadata_replay_cuda_graph(batch, batch.batch_size)
        return
    backend.init_forward_metadata_out_graph(batch, in_capture=capture)


def trtllm(lengths: list[int], steps: int, context: int) -> Side:
    """Replay preparation of a TRT-LLM MLA draft."""

    def make() -> tuple[Callable[[], None], Any]:
        from sglang.srt.layers.attention import flashinfer_mla_backend, trtllm_mla_backend

        lent_wrappers(flashinfer_mla_backend)
        lent_wrappers(trtllm_mla_backend)
        arguments = server_args(speculative_num_steps=steps, page_size=64)
        names = (flashinfer_mla_backend.__name__, trtllm_mla_backend.__name__)
        publish(arguments, *names)
        runner = model_runner(
            arguments, mla=True, device=GPU, context=context, requests=max(len(lengths), 2)
        )
        backend = trtllm_mla_backend.TRTLLMMLAMultiStepDraftBackend(runner, 1, steps)
        backend.init_cuda_graph_state(len(lengths), len(lengths))
        prepare(backend, batch_of(runner, [1] * len(lengths), capture=True), capture=True)
        batch = batch_of(runner, lengths)
        prepare(backend, batch)
        seen = [
            step.decode_cuda_graph_metadata[len(lengths)].block_kv_indices.clone()
            for step in backend.attn_backends
        ]

        def act() -> None:
            prepare(backend, batch)

        return act, seen

    return make


def flash_attention(lengths: list[int], steps: int, context: int) -> Side:
    """Replay preparation of a FlashAttention draft with topk = 1."""

    def make() -> tuple[Callable[[], None], Any]:
        from sglang.srt.layers.attention import flashattention_backend as module

        arguments = server_args(speculative_num_steps=steps, speculative_num_draft_tokens=steps + 1)
        publish(arguments, module.__name__)
        runner = model_runner(
            arguments, device=GPU, context=context, requests=len(lengths), is_draft_worker=True
        )
        backend = module.FlashAttentionMultiStepBackend(runner, 1, steps)
        backend.init_cuda_graph_state(len(lengths), len(lengths))
        prepare(backend, batch_of(runner, [1] * len(lengths), capture=True), capture=True)
        batch = batch_of(runner, lengths)
        prepare(backend, batch)
        seen = []
        for step in backend.attn_backends:
            metadata = step.decode_cuda_graph_metadata[len(lengths)]
            reads = metadata.cache_seqlens_int32.tolist()
            rows = zip(metadata.page_table, reads, strict=True)
            seen.append([metadata.cache_seqlens_int32.clone(), metadata.cu_seqlens_k.clone()])
            seen.append([row[:count].clone() for row, count in rows])

        def act() -> None:
            prepare(backend, batch)

        return act, seen

    return make


def flashinfer(lengths: list[int], steps: int, topk: int, context: int) -> Side:
    """Replay preparation of a FlashInfer draft, up to the wheel's own planning."""

    def make() -> tuple[Callable[[], None], Any]:
        from sglang.srt.layers.attention import flashinfer_backend as module

        lent_wrappers(module)
        module.fast_decode_plan = lent.Wrapper.begin_forward
        module.should_use_tensor_core = lambda **_: False
        arguments = server_args(speculative_num_steps=steps, speculative_eagle_topk=topk)
        count = len(lengths)
        publish(arguments, module.__name__)
        runner = model_runner(arguments, device=GPU, context=context, requests=count)
        backend = module.FlashInferMultiStepDraftBackend(runner, topk, steps)
        backend.init_cuda_graph_state(count * topk, count * topk)
        prepare(backend, batch_of(runner, [1] * count, topk, capture=True), capture=True)
        wrappers = []
        for step in backend.attn_backends:
            for kept in step.decode_cuda_graph_metadata.values():
                wrappers += kept if isinstance(kept, list) else kept.decode_wrappers
        for wrapper in wrappers:
            wrapper.plans.clear()
        batch = batch_of(runner, lengths, topk)
        prepare(backend, batch)
        seen = [list(wrapper.plans) for wrapper in wrappers]
        for wrapper in wrappers:
            wrapper.begin_forward = lambda *_given, **_named: None

        def act() -> None:
            prepare(backend, batch)

        return act, seen

    return make


def lent_wrappers(module: Any) -> None:
    """The wheel's wrappers would compile kernels for minutes; they are not what is timed."""
    module._jit_fixup_module = lambda *_: None
    for kind in ("MLAPagedAttention", "DecodeWithPagedKVCache", "PrefillWithPagedKVCache"):
        setattr(module, f"Batch{kind}Wrapper", lent.Wrapper)
    module.BatchPrefillWithRaggedKVCacheWrapper = lent.Wrapper


def publish(arguments: Room, *names: str) -> None:
    """Publish a server's arguments until the next ones are."""
    while KEPT:
        KEPT.pop().__exit__(None, None, None)
    manager = furnished(arguments, *names)
    manager.__enter__()
    KEPT.append(manager)


def verify_mask(backend_of: str, max_bs: int, draft: int, context: int, bs: int) -> Side:
    """Building the trees of a verify in the backend's preallocated mask."""

    def make() -> tuple[Callable[[], None], Any]:
        import importlib

        module = importlib.import_module(f"sglang.srt.layers.attention.{backend_of}")
        names = (module.__name__, eagle_worker_v2.__name__)
        if backend_of == "trtllm_mla_backend":
            from sglang.srt.layers.attention import flashinfer_mla_backend

            lent_wrappers(flashinfer_mla_backend)
            lent_wrappers(module)
            names = (*names, flashinfer_mla_backend.__name__)
        arguments = server_args(
            speculative_num_draft_tokens=draft, page_size=64 if "trtllm" in backend_of else 1
        )
        publish(arguments, *names)
        runner = model_runner(arguments, mla=True, device=GPU, context=64, requests=max(max_bs, 2))
        runner.model_config.context_len = context
        kind = "TritonAttnBackend" if "triton" in backend_of else "TRTLLMMLABackend"
        backend = getattr(module, kind)(runner)
        # The KV indices of a graph are not what is measured, and would take gigabytes.
        small = torch.zeros(1, dtype=torch.int64, device=GPU)
        backend.init_cuda_graph_state(max_bs, max_bs * draft, kv_indices_buf=small)
        if hasattr(type(backend), "verify_mask"):
            buffer = backend.verify_mask.buffer
        else:
            buffer = backend.get_verify_buffers_to_fill_after_draft()[0]
        # A tree of two branches where there is room for it, else a chain.
        nodes = [0, 1, 2, 4] if draft == 5 else list(range(draft - 1))
        parents = [-1, 0, 1] if draft == 5 else list(range(-1, draft - 2))
        topk, steps = (2, 2) if draft == 5 else (1, draft - 1)
        seq_lens = torch.arange(bs, device=GPU) * 37 % 900 + 1000
        given = (
            torch.zeros(bs, dtype=torch.int64, device=GPU),
            torch.tensor([parents] * bs, device=GPU),
            torch.tensor([nodes] * bs, device=GPU),
            torch.zeros((bs, draft - 1), dtype=torch.int64, device=GPU),
            seq_lens,
            0,
            topk,
            steps,
            draft,
        )

        def act() -> Any:
            mode = eagle_utils.TreeMaskMode.FULL_MASK
            if hasattr(type(backend), "verify_mask"):
                mask = backend.verify_mask
                return eagle_utils.build_tree_kernel_efficient(
                    *given, mask.mode, mask.buffer, fill_prefix_mask=mask.is_read
                )
            mask, positions = backend.get_verify_buffers_to_fill_after_draft()
            return eagle_utils.build_tree_kernel_efficient(*given, mode, mask, positions)

        made = act()
        torch.cuda.synchronize()
        cells: list[torch.Tensor] = []
        if "triton" in backend_of:
            at = 0
            for length in seq_lens.tolist():
                rows = made[0][at : at + draft * (length + draft)].reshape(draft, length + draft)
                cells.append(rows[:, length:].to(torch.uint8).clone())
                at += rows.numel()
        BYTES.append(buffer.nbytes)
        return act, [*cells, *(value.clone() for value in made[1:])]

    return make


RESULTS: list[dict[str, Any]] = []
KEPT: list[Any] = []
BYTES: list[int] = []
CYCLES = 0


TRTLLM = [(lengths, steps) for steps in (3, 4) for lengths in ([80_000], [32_768] * 16)]
MASKS = [
    (max_bs, draft, context, bs)
    for max_bs, draft, context in ((128, 4, 131_072), (512, 4, 163_840), (128, 5, 131_072))
    for bs in (1, 64)
]
FLASHINFER = [([4096], 4), ([4096] * 16, 4), ([16_384] * 64, 1)]
FLASH = [
    (lengths, steps) for lengths in ([80_000], [32_768] * 64, [16_384] * 256) for steps in (3, 5)
]


def main(out: str) -> int:
    """Run every piece that the release has; 1 where one failed or differs."""
    global CYCLES
    CYCLES = _cycles()
    put({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "verdicts": WORDS})
    for lengths, steps in TRTLLM:
        label = f"bs {len(lengths)}, {lengths[0]} tokens, {steps} steps"
        for patch in ("mla.draft-metadata", "mla.shared-block-tables"):
            compare(patch, label, trtllm(lengths, steps, lengths[0] + 1920))
    for max_bs, draft, context, bs in MASKS:
        label = f"{max_bs} x {draft} x {context}, bs {bs}"
        side = verify_mask("triton_backend", max_bs, draft, context, bs)
        compare("mla.verify-mask-fill", label, side)
        side = verify_mask("trtllm_mla_backend", max_bs, draft, context, bs)
        compare("mla.mask-scratch", label, side)
    for lengths, topk in FLASHINFER:
        label = f"bs {len(lengths)}, {lengths[0]} tokens, topk {topk}, 4 steps"
        side = flashinfer(lengths, 4, topk, lengths[0] + 64)
        compare("mla.flashinfer-host-indptr", f"{label}, behind 2.8 ms", side, stall=True)
        compare("mla.flashinfer-host-indptr", f"{label}, idle", side)
    for lengths, steps in FLASH:
        label = f"bs {len(lengths)}, {lengths[0]} tokens, {steps} steps"
        compare("mla.shared-draft-tables", label, flash_attention(lengths, steps, lengths[0] + 64))
    Path(out).write_text(json.dumps(RESULTS, indent=1) + "\n")
    return int(any("error" in found or found.get("equal") is False for found in RESULTS))
