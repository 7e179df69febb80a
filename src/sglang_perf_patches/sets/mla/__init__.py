"""Speculative decoding with MLA, and the attention backends that draft and verify for it."""

from ...model.patch import Marker, Patch, Variant, Worth
from ...model.releases import between
from .proven import PROVEN

SUMMARY = "host syncs and dead metadata work in speculative decoding"

_HERE = "sglang_perf_patches.sets.mla"
_ATTENTION = "sglang.srt.layers.attention"
_SPECULATIVE = "sglang.srt.speculative"
_UTILS = "sglang.srt.utils"
_TRTLLM = f"{_ATTENTION}.trtllm_mla_backend:TRTLLMMLABackend"
_TRTLLM_DRAFT = f"{_ATTENTION}.trtllm_mla_backend:TRTLLMMLAMultiStepDraftBackend"
_FLASHINFER_MLA_DRAFT = f"{_ATTENTION}.flashinfer_mla_backend:FlashInferMLAMultiStepDraftBackend"
_TRITON = f"{_ATTENTION}.triton_backend:TritonAttnBackend"
_BUILD_TREE = f"{_SPECULATIVE}.eagle_utils:build_tree_kernel_efficient"
_EAGLE_WORKER = f"{_SPECULATIVE}.eagle_worker_v2"
_COMMON = f"{_SPECULATIVE}.eagle_worker_common"
_FORWARD_BATCH = "sglang.srt.model_executor.forward_batch_info"
_OVERLAP = "sglang.srt.managers.overlap_utils"

# Backends that inherit TRT-LLM MLA's draft.
_TOKENSPEED = (
    f"{_ATTENTION}.tokenspeed_mla_backend:TokenspeedMLABackend",
    f"{_ATTENTION}.tokenspeed_mla_backend:TokenspeedMLAMultiStepDraftBackend",
)
_CUTEDSL = (
    f"{_ATTENTION}.cutedsl_mla_backend:CuteDslMLABackend",
    f"{_ATTENTION}.cutedsl_mla_backend:CuteDslMLAMultiStepDraftBackend",
)

# These keep the host's lengths of a speculative batch exact.
_EXACT_BY_RELAY = (f"{_OVERLAP}:FutureMap.resolve_seq_lens_cpu",)


def _kernels(module: str) -> tuple[str, ...]:
    """What shows that the verify skips the prefix cells of its mask."""
    return (f"{module}:extend_attention_fwd", f"{module}:_fwd_kernel")


def _draft_replay(first: str, last: str, *heirs: str) -> Variant:
    return Variant(
        releases=between(first, last),
        install=f"{_HERE}.draft_metadata:install_replay",
        targets=(),
        adds=(
            f"{_TRTLLM_DRAFT}.init_forward_metadata_capture_cuda_graph",
            f"{_TRTLLM_DRAFT}.init_forward_metadata_replay_cuda_graph",
            f"{_TRTLLM_DRAFT}.init_forward_metadata",
        ),
        depends=(
            _TRTLLM_DRAFT,
            _FLASHINFER_MLA_DRAFT,
            f"{_TRTLLM}.init_forward_metadata",
            f"{_TRTLLM}.init_forward_metadata_capture_cuda_graph",
            f"{_TRTLLM}.init_forward_metadata_replay_cuda_graph",
            f"{_TRTLLM}.forward_decode",
            *heirs,
        ),
        awaits=(_UTILS, _FORWARD_BATCH),
    )


def _draft_out_graph(first: str, last: str, *heirs: str) -> Variant:
    return Variant(
        releases=between(first, last),
        install=f"{_HERE}.draft_metadata:install_out_graph",
        targets=(
            f"{_TRTLLM_DRAFT}.init_forward_metadata_out_graph",
            f"{_TRTLLM_DRAFT}.init_forward_metadata",
        ),
        depends=(
            _TRTLLM_DRAFT,
            _FLASHINFER_MLA_DRAFT,
            f"{_TRTLLM}.init_forward_metadata",
            f"{_TRTLLM}.init_forward_metadata_out_graph",
            f"{_TRTLLM}._init_cuda_graph_metadata",
            f"{_TRTLLM}._apply_cuda_graph_metadata",
            f"{_TRTLLM}.forward_decode",
            *heirs,
        ),
        awaits=(_UTILS,),
    )


_DRAFT_METADATA = Patch(
    id="mla.draft-metadata",
    proven_with=PROVEN["mla.draft-metadata"],
    summary="the TRT-LLM MLA draft prepares what its kernel reads, once for all steps",
    why=(
        "Up to 0.5.12.post1 the multi-step draft backend of TRT-LLM MLA inherits its preparation "
        "from FlashInfer's. Before every draft it fills kv_indices and kv_indptr, with one entry "
        "per token of context and step. In eager batches it also allocates and copies them. The "
        "TRT-LLM kernel reads neither: each step builds its own page table. In every release each "
        "step builds that table, from the same requests and up to the same length. The tables are "
        "equal."
    ),
    how=(
        "Up to 0.5.12.post1 the draft backend gets preparation methods that call only the steps' "
        "own preparation. In every release the steps' graphs are captured on the metadata of the "
        "first step, and only that is prepared. Eager drafts prepare the first step and share its "
        "result. TokenSpeed MLA and CuTe DSL MLA inherit both."
    ),
    gain=(
        "Drafts on TRT-LLM MLA are prepared faster, with three or more steps in every release; up "
        "to 0.5.12.post1 the more the longer the context. Nothing was measured end to end. One "
        "H200:"
    ),
    figures=(
        ("preparing the replay of a draft", "stock", "patched"),
        ("1 request of 80,000 tokens, 3 steps, 0.5.12.post1", "117 µs", "18 µs"),
        ("1 request of 80,000 tokens, 4 steps, 0.5.12.post1", "123 µs", "19 µs"),
        ("16 requests of 32,768 tokens, 3 steps, 0.5.12.post1", "67 µs", "18 µs"),
        ("16 requests of 32,768 tokens, 4 steps, 0.5.12.post1", "87 µs", "19 µs"),
        ("4 steps, 0.5.13.post1, 0.5.17 and 0.5.23", "1", "0.34 to 0.44"),
        ("3 steps, the same releases", "1", "0.57 to 0.62"),
    ),
    worth=Worth(
        "c",
        "sgl-project/sglang#26241",
    ),
    condition=(
        "EAGLE or MTP with --attention-backend trtllm_mla (or cutedsl_mla, tokenspeed_mla) for the "
        "draft, from 0.5.13 on with three or more steps. The attention kernel itself needs a "
        "Blackwell GPU."
    ),
    upstream=("sgl-project/sglang#26241",),
    upstream_note="since 0.5.13, for the index work; each step still builds its own table",
    anchors=(_TRTLLM_DRAFT,),
    variants=(
        _draft_replay("0.5.9", "0.5.11"),
        _draft_replay("0.5.12", "0.5.12.post1", *_TOKENSPEED),
        _draft_out_graph("0.5.13", "0.5.16", *_TOKENSPEED),
        # Without TokenSpeed's names, which 0.5.23 lacks, the code of 0.5.22 and 0.5.23 is equal.
        _draft_out_graph("0.5.17", "0.5.23", *_CUTEDSL),
    ),
)

_MASK_BUFFERS = f"{_TRITON}.get_verify_buffers_to_fill_after_draft"
_OLD_KERNELS = _kernels(f"{_ATTENTION}.triton_ops.extend_attention")
_NEW_KERNELS = _kernels("sglang.kernels.ops.attention.extend_attention")
_TRIVIAL = f"{_EAGLE_WORKER}:EAGLEWorkerV2._build_trivial_verify_input"
_DRAFTS = (
    f"{_EAGLE_WORKER}:EagleDraftWorker.draft",
    f"{_SPECULATIVE}.multi_layer_eagle_worker_v2:MultiLayerEagleDraftWorker.draft",
)
_VERIFY_METADATA = (
    f"{_TRITON}.init_cuda_graph_state",
    f"{_TRITON}.init_forward_metadata",
    f"{_TRITON}.forward_extend",
)
_GRAPH_METADATA = (
    f"{_TRITON}._update_target_verify_buffers",
    f"{_TRITON}._build_cuda_graph_forward_metadata",
)


def _verify_masks(first: str, last: str, *kernels: str) -> Variant:
    return Variant(
        releases=between(first, last),
        install=f"{_HERE}.verify_mask_fill:install_masks",
        targets=(f"{_TRITON}.verify_mask", f"{_TRITON}.__init__", _TRIVIAL),
        depends=(
            *_VERIFY_METADATA,
            *_GRAPH_METADATA,
            *_NEW_KERNELS,
            *kernels,
            f"{_ATTENTION}.verify_mask:VerifyMask",
            _BUILD_TREE,
            f"{_COMMON}:build_eagle_verify_input",
        ),
        awaits=(_UTILS, "msgspec.structs"),
    )


_VERIFY_MASK_FILL = Patch(
    id="mla.verify-mask-fill",
    proven_with=PROVEN["mla.verify-mask-fill"],
    summary="the tree mask of the Triton verify is not filled if nothing reads it",
    why=(
        "The Triton verify has a tree mask of draft x (context + draft) cells per request, "
        "allocated for the largest batch and context. At each step stock fills all of it with "
        "ones; then its kernel writes the draft x draft cells of each request. Attention never "
        "reads the other cells: extend_attention_fwd skips the prefix part of a custom mask by "
        "default, and the backend does not change that. From 0.5.14 on, verifying trees of one "
        "node fills the buffer too."
    ),
    how=(
        "Up to 0.5.16 the tree builder gets the buffer as a tensor on which a fill has no effect. "
        "From 0.5.17 on the backend declares that nothing reads the prefix of its mask, and the "
        "builder respects that. For trees of one node the patch writes the cell of each request "
        "instead, if the buffer has 16 MiB or more. The deterministic kernel reads the prefix, so "
        "the patch stays off with it; it also stays off on HIP, NPU, XPU and MUSA. Padding rows of "
        "a replayed graph attend with what an earlier step left in their cells; their outputs are "
        "dropped. If activations may be quantised with one scale over all rows, padding included "
        "(FP8 without block scales, for example), stock fills the mask."
    ),
    gain=(
        "EAGLE servers whose verify mask is large build each verify faster. A real Engine on "
        "0.5.17 showed no difference in time. With 67 or 84 MB the GPU saves a fill of 24 µs or "
        "more, but the host's launches take longer than that. The present form launches no fill. "
        "One H200; 0.5.12.post1, 0.5.13.post1, 0.5.17 and 0.5.23:"
    ),
    figures=(
        (
            "building the verify input, by mask (requests x draft tokens x tokens)",
            "stock",
            "patched",
        ),
        ("336 MB (512 x 4 x 163,840), all four releases", "111 to 113 µs", "45 to 52 µs"),
        ("67 or 84 MB (128 x 4 or 5 x 131,072), 0.5.17, 0.5.23", "1", "0.79 to 0.95"),
        (
            "the same, 0.5.12.post1, 0.5.13.post1, a form that still filled one cell",
            "1",
            "1.02 to 1.14",
        ),
    ),
    worth=Worth(
        "in doubt",
        "only building a verify was shown to gain; an Engine of 0.5.17 showed no difference",
    ),
    condition=(
        "EAGLE or MTP with spec v2, --attention-backend triton for the verify, and CUDA graphs. "
        "The gain depends on the captured batch size times the context length, not on the load."
    ),
    variants=(
        Variant(
            releases=between("0.5.9", "0.5.12.post1"),
            install=f"{_HERE}.verify_mask_fill:install_buffers",
            targets=(_MASK_BUFFERS, f"{_TRITON}.__init__", _BUILD_TREE),
            depends=(
                *_VERIFY_METADATA,
                f"{_TRITON}.init_forward_metadata_replay_cuda_graph",
                *_OLD_KERNELS,
                *_DRAFTS,
            ),
            awaits=(_UTILS,),
        ),
        Variant(
            releases=between("0.5.13", "0.5.13.post1"),
            install=f"{_HERE}.verify_mask_fill:install_buffers",
            targets=(_MASK_BUFFERS, f"{_TRITON}.__init__", _BUILD_TREE),
            depends=(*_VERIFY_METADATA, *_GRAPH_METADATA, *_OLD_KERNELS, *_DRAFTS),
            awaits=(_UTILS,),
        ),
        Variant(
            releases=between("0.5.14", "0.5.15.post1"),
            install=f"{_HERE}.verify_mask_fill:install_buffers_and_trivial",
            targets=(_MASK_BUFFERS, f"{_TRITON}.__init__", _BUILD_TREE, _TRIVIAL),
            depends=(*_VERIFY_METADATA, *_GRAPH_METADATA, *_OLD_KERNELS, *_DRAFTS),
            awaits=(_UTILS,),
        ),
        Variant(
            releases=("0.5.16",),
            install=f"{_HERE}.verify_mask_fill:install_buffers_and_trivial",
            targets=(_MASK_BUFFERS, f"{_TRITON}.__init__", _BUILD_TREE, _TRIVIAL),
            depends=(
                *_VERIFY_METADATA,
                *_GRAPH_METADATA,
                *_NEW_KERNELS,
                f"{_COMMON}:build_eagle_verify_input",
            ),
            awaits=(_UTILS,),
        ),
        _verify_masks("0.5.17", "0.5.21"),
        _verify_masks("0.5.22", "0.5.23", f"{_TRITON}._forward_extend_kernel"),
    ),
)

_HYBRID = f"{_ATTENTION}.hybrid_attn_backend:HybridAttnBackend"
_BASE = f"{_ATTENTION}.base_attn_backend:AttentionBackend"
_TRITON_DRAFT = f"{_ATTENTION}.triton_backend:TritonMultiStepDraftBackend"
_OPT_OUT_TARGETS = (
    f"{_OVERLAP}:decide_needs_cpu_seq_lens",
    f"{_BASE}.get_verify_buffers_to_fill_after_draft",
    f"{_BASE}.update_verify_buffers_to_fill_after_draft",
    _BUILD_TREE,
)
_OPT_OUT_DEPENDS = (
    *_EXACT_BY_RELAY,
    "sglang.srt.managers.scheduler:Scheduler.init_overlap",
    f"{_EAGLE_WORKER}:EAGLEWorkerV2.spec_v2_attn_backends",
    f"{_SPECULATIVE}.multi_layer_eagle_worker_v2:MultiLayerEagleWorkerV2.spec_v2_attn_backends",
    f"{_SPECULATIVE}.draft_utils:DraftBackendFactory",
    f"{_BASE}.needs_cpu_seq_lens",
    f"{_HYBRID}.__init__",
    f"{_HYBRID}._select_backend",
    f"{_HYBRID}.init_cuda_graph_state",
)
_OPT_OUT_TRITON = (
    f"{_TRITON}.needs_cpu_seq_lens",
    f"{_TRITON}.init_forward_metadata",
    f"{_TRITON}.init_forward_metadata_out_graph",
    *_GRAPH_METADATA,
    _TRITON_DRAFT,
)
_OPT_OUT_TRTLLM = (
    f"{_TRTLLM}.needs_cpu_seq_lens",
    f"{_TRTLLM}.init_cuda_graph_state",
    f"{_TRTLLM}.get_verify_buffers_to_fill_after_draft",
    f"{_TRTLLM}.init_forward_metadata",
    f"{_TRTLLM}.init_forward_metadata_out_graph",
    f"{_TRTLLM}._apply_cuda_graph_metadata",
    _TRTLLM_DRAFT,
)
_PIECEWISE = "sglang.srt.model_executor.piecewise_cuda_graph_runner:PiecewiseCudaGraphRunner"
_FORWARD = "sglang.srt.model_executor.model_runner:ModelRunner"

_SYNC_OPT_OUT = Patch(
    id="mla.sync-opt-out",
    proven_with=PROVEN["mla.sync-opt-out"],
    summary="no wait for sequence lengths that no backend of a speculative step reads",
    why=(
        "Before each step with spec v2 the scheduler copies the lengths of the last verify to the "
        "host and waits for the copy. From 0.5.13 on Triton and TRT-LLM MLA declare that they do "
        "not need the lengths there. But 0.5.13 and 0.5.13.post1 copy anyway unless piecewise CUDA "
        "graphs, on by default, are off. 0.5.13 to 0.5.16 also copy if prefill and decode have "
        "different backends: up to 0.5.15.post1 always, and 0.5.16 if either backend needs the "
        "lengths, even one that no step runs on."
    ),
    how=(
        "The patch decides by the backends that a step runs on. Of a hybrid backend the one that "
        "decodes counts; the one for prefill counts only if it verifies or belongs to a draft "
        "worker. A draft-extend that the worker does not name keeps the copy. A hybrid then uses "
        "the verify mask of the backend that verifies, and a batch that does not fit gets its own "
        "mask. In these releases a piecewise graph never sees a verify or a draft-extend, except "
        "breakable or enforced ones. The copy stays with those, with two-batch overlap, with "
        "adaptive speculation, multimodal rotary positions and forward pass metrics, and with "
        "every algorithm but EAGLE, EAGLE3 and STANDALONE."
    ),
    gain=(
        "EAGLE servers on Triton or TRT-LLM MLA save one copy to the host and one wait per "
        "speculative step. Time per token was lower with 1 and 64 requests; with 16 the boots of "
        "one side differ by more than the sides do. One H200, 0.5.13.post1. The Engine is a real "
        "one (Triton, piecewise graphs on, mla.verify-mask-fill on too); its tokens are the same."
    ),
    figures=(
        ("measured", "stock", "patched"),
        ("the copy and the wait, idle GPU", "29 of 62 to 65 µs", "none"),
        ("host held behind 2.8 ms of queued work", "2.8 ms", "none"),
        ("stream syncs per verify step, Engine", "1.12", "0.10"),
        ("time per token, 1 request, two boots a side", "1.09 and 1.12 ms", "0.96 and 1.01 ms"),
        ("time per token, 64 requests, two boots a side", "4.48 and 4.55 ms", "4.27 and 4.33 ms"),
    ),
    worth=Worth(
        "c",
        "sgl-project/sglang#26824",
    ),
    condition=(
        "EAGLE, EAGLE3, MTP or STANDALONE with spec v2, and --attention-backend triton or "
        "trtllm_mla for target and draft. 0.5.13 and 0.5.13.post1 gain unless piecewise CUDA "
        "graphs are off already. 0.5.13 to 0.5.16 gain if prefill and decode have different "
        "backends, 0.5.16 with triton only. Engines with different backends were not run on a GPU."
    ),
    upstream=(
        "sgl-project/sglang#26824",
        "sgl-project/sglang#28633",
        "sgl-project/sglang#26128",
    ),
    built_in_since="0.5.17",
    markers=(
        Marker(
            definition=f"{_HYBRID}.__init__",
            contains="self.spec_attn_is_prefill and prefill_backend.needs_cpu_seq_lens",
        ),
    ),
    anchors=(f"{_OVERLAP}:decide_needs_cpu_seq_lens",),
    absent_because=(
        "before 0.5.13 the step waits in other code (#26128 replaced it). That wait also keeps the "
        "preparation of the next batch from rewriting req_to_token while the running step still "
        "reads it. Without it, and without the barrier that upstream built, the KV of a shared "
        "prefix could be overwritten, so it is not backported"
    ),
    variants=(
        Variant(
            releases=between("0.5.13", "0.5.13.post1"),
            install=f"{_HERE}.sync_opt_out:install_piecewise",
            targets=_OPT_OUT_TARGETS,
            depends=(
                *_OPT_OUT_DEPENDS,
                *_DRAFTS,
                *_OPT_OUT_TRITON,
                *_OPT_OUT_TRTLLM,
                f"{_SPECULATIVE}.eagle_info_v2:EagleDraftInputV2Mixin",
                f"{_SPECULATIVE}.eagle_info_v2:EagleVerifyInputV2Mixin.prepare_for_v2_verify",
                f"{_FORWARD_BATCH}:ForwardBatch.init_new",
                f"{_PIECEWISE}.can_run",
                f"{_FORWARD}.init_piecewise_cuda_graphs",
                f"{_FORWARD}.forward_extend",
            ),
            awaits=(_UTILS, _FORWARD_BATCH),
        ),
        Variant(
            releases=between("0.5.14", "0.5.15.post1"),
            install=f"{_HERE}.sync_opt_out:install_hybrid",
            targets=_OPT_OUT_TARGETS,
            depends=(*_OPT_OUT_DEPENDS, *_DRAFTS, *_OPT_OUT_TRITON, *_OPT_OUT_TRTLLM),
            awaits=(_UTILS, _FORWARD_BATCH),
        ),
        Variant(
            releases=("0.5.16",),
            install=f"{_HERE}.sync_opt_out:install_triton_hybrid",
            targets=_OPT_OUT_TARGETS,
            depends=(
                *_OPT_OUT_DEPENDS,
                *_OPT_OUT_TRITON,
                f"{_COMMON}:build_eagle_verify_input",
            ),
            awaits=(_UTILS, _FORWARD_BATCH),
        ),
    ),
)

_FLASH = f"{_ATTENTION}.flashattention_backend"
_FLASH_STEP = f"{_FLASH}:FlashAttentionBackend"
_FLASH_DRAFT = f"{_FLASH}:FlashAttentionMultiStepBackend"


def _draft_tables(first: str, last: str, *helpers: str) -> Variant:
    return Variant(
        releases=between(first, last),
        install=f"{_HERE}.shared_draft_tables:install_flash_attention",
        targets=(
            f"{_FLASH_DRAFT}.init_cuda_graph_state",
            f"{_FLASH_DRAFT}.init_forward_metadata_out_graph",
        ),
        depends=(
            _FLASH_DRAFT,
            f"{_FLASH_STEP}.init_cuda_graph_state",
            f"{_FLASH_STEP}.init_forward_metadata_out_graph",
            f"{_FLASH_STEP}._init_full_cg_decode_metadata",
            f"{_FLASH_STEP}._bind_metadata_buffers",
            f"{_FLASH_STEP}._apply_cuda_graph_metadata",
            *(f"{_FLASH_STEP}.{helper}" for helper in helpers),
            "sglang.kernels.ops.attention.metadata:normal_decode_set_metadata",
        ),
        awaits=(_UTILS,),
    )


_SHARED_DRAFT_TABLES = Patch(
    id="mla.shared-draft-tables",
    proven_with=PROVEN["mla.shared-draft-tables"],
    summary="the steps of a FlashAttention draft share one page table",
    why=(
        "With topk = 1 each step of a draft has its own page table. Before every replay a kernel "
        "builds each table anew and copies the context's pages. The steps read the same requests, "
        "each one token further than the step before, so the table of the last step holds them all."
    ),
    how=(
        "The steps' graphs are captured on one table, and the kernel of the last step builds it. "
        "One more kernel derives the lengths of all earlier steps, and their sums, from those of "
        "the last step. The width of the table stays. Stock's code runs for eager batches, topk > "
        "1, sliding windows, sharded KV pools and cross attention. It also runs for drafts of up "
        "to 3 steps: they hold two tables, and building both took no longer."
    ),
    gain=(
        "Drafts of 5 steps on FlashAttention are prepared faster, and each further step saves the "
        "memory of a page table. 4 steps were not timed, and nothing was measured end to end. One "
        "H200, 0.5.17 and 0.5.23:"
    ),
    figures=(
        ("preparing the replay of a draft of 5 steps", "stock", "patched"),
        ("time", "110 to 143 µs", "62 to 87 µs"),
        ("ratio", "1", "0.53 to 0.60"),
    ),
    worth=Worth(
        "in doubt",
        "only preparing a draft of 5 steps was shown to gain; no Engine was run",
    ),
    condition=(
        "EAGLE, EAGLE3, MTP or STANDALONE with topk = 1, four or more steps, --attention-backend "
        "fa3 (the default on Hopper) for the draft, and CUDA graphs."
    ),
    absent_because="before 0.5.17 other code builds the draft's tables",
    anchors=(f"{_ATTENTION}.verify_mask:VerifyMask",),  # came with that code
    variants=(
        _draft_tables("0.5.17", "0.5.19"),
        _draft_tables("0.5.20", "0.5.21", "_set_decode_page_metadata"),
        _draft_tables("0.5.22", "0.5.23", "_set_decode_page_metadata", "_spec_read_seq_len_delta"),
    ),
)

_EXTEND_GRAPHS = f"{_EAGLE_WORKER}:EagleDraftWorker.init_cuda_graphs"
_EXTEND_CAPTURE = f"{_EAGLE_WORKER}:EagleDraftWorker._capture_cuda_graphs"
_EXTEND_RUNNER = (
    f"{_SPECULATIVE}.eagle_draft_extend_cuda_graph_runner:EAGLEDraftExtendCudaGraphRunner"
)
_EXTEND_DEPENDS = (
    f"{_EAGLE_WORKER}:EagleDraftWorker.init_attention_backend",
    f"{_EAGLE_WORKER}:EagleDraftWorker._draft_extend_for_decode",
    f"{_EXTEND_RUNNER}.__init__",
    f"{_FLASH_STEP}.__init__",
    f"{_FLASH_STEP}.init_cuda_graph_state",
    f"{_FLASH_STEP}.init_forward_metadata",
    f"{_FLASH_STEP}.forward_extend",
)
_EXTEND_OUT_GRAPH = (
    f"{_FLASH_STEP}.init_forward_metadata_out_graph",
    f"{_FLASH_STEP}._bind_metadata_buffers",
    f"{_FLASH_STEP}._apply_cuda_graph_metadata",
)
_EXTEND_IN_GRAPH = (
    f"{_FLASH_STEP}.init_forward_metadata_in_graph",
    f"{_FLASH_STEP}.draft_extend_metadata_captured_in_graph",
    f"{_FLASH_STEP}._init_full_cg_decode_metadata",
    f"{_EXTEND_RUNNER}.capture_one_shape",
    "sglang.kernels.ops.attention.metadata:draft_extend_set_metadata",
    "sglang.kernels.ops.attention.metadata:_draft_extend_metadata_kernel",
)
_WAR_BARRIER = ("sglang.srt.managers.scheduler:Scheduler._apply_war_barrier",)


def _early_extend(first: str, last: str, install: str, method: str, *depends: str) -> Variant:
    return Variant(
        releases=between(first, last),
        install=f"{_HERE}.draft_extend_graph:{install}",
        targets=(method,),
        depends=(*_EXTEND_DEPENDS, *depends),
        awaits=(_UTILS, _FLASH),
    )


def _extend_graph(first: str, last: str, install: str, *targets: str) -> Variant:
    return Variant(
        releases=between(first, last),
        install=f"{_HERE}.draft_extend_graph:{install}",
        targets=(_EXTEND_CAPTURE, f"{_EXTEND_RUNNER}.can_run_graph", *targets),
        depends=(
            *_EXTEND_DEPENDS,
            *_EXTEND_OUT_GRAPH,
            *_EXTEND_IN_GRAPH,
            *_WAR_BARRIER,
            f"{_COMMON}:prepare_for_draft_extend",
            *(() if targets else (f"{_EXTEND_RUNNER}.execute", f"{_BASE}.shared_read_ends")),
        ),
        awaits=(_UTILS, _FLASH),
    )


_DRAFT_EXTEND_GRAPH = Patch(
    id="mla.draft-extend-graph",
    proven_with=PROVEN["mla.draft-extend-graph"],
    kind="policy",
    summary="FlashAttention's draft-extend is replayed from a graph instead of launched eagerly",
    why=(
        "With spec v2 each speculative step ends with the draft-extend, one forward of the draft "
        "over the verified tokens. Stock replays it from a CUDA graph for the backends of a list. "
        "Before 0.5.23 that list lacks FlashAttention, the default on Hopper, so its kernels are "
        "launched one by one at every step."
    ),
    how=(
        "While the draft worker captures its graphs, the list contains FlashAttention. Everything "
        "else is stock's own code. The backend keeps one page table for that graph instead of one "
        "for each mode. On 0.5.16 to 0.5.21 the scheduler waits for the whole forward, as it does "
        "behind an eager draft-extend, because the graph reads the request pool. It is a policy "
        "because the draft's own numbers may round differently: a batch is padded to a captured "
        "size, from 0.5.20 on the head runs only on the accepted rows, and up to 0.5.15.post1 the "
        "table is wider than an eager one, which splits attention differently. In a tie the draft "
        "may then propose another token. The verify decides what is accepted, and the patch does "
        "not touch it. Stock's code runs with SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH, DP "
        "attention, adaptive speculation, reduced vocabularies, topk > 1, sliding-window and "
        "sharded pools, cross attention, multimodal rotary positions, and models whose activations "
        "are quantised with one scale over all rows. From 0.5.16 on it also runs for batches whose "
        "lengths the host has."
    ),
    gain=(
        "Small targets and widely sharded ones gain a third to a half of the time per token; an "
        "8B-shaped one on one H200 gains 1 to 2 %. One H200; other releases than those below were "
        "not run. The times are those of a small DeepSeek with its own MTP layer: on 0.5.22 one "
        "boot a side in turns, else in turns in one Engine. The machine's processors had other "
        "work: the busier the host, the greater the gain. The tokens of 4,212 requests were the "
        "same. Logits are stock's bits for batches of a captured size; if a batch is padded a lot "
        "they may differ. Those of 0.5.11 and 0.5.12.post1 were not compared."
    ),
    figures=(
        ("measured", "stock", "patched"),
        ("time per token, 1 request, 0.5.12.post1", "4.82 ms", "3.03 ms"),
        ("time per token, 16 requests, 0.5.12.post1", "5.21 ms", "3.39 ms"),
        ("time per token, 64 requests, 0.5.12.post1", "5.76 ms", "3.92 ms"),
        ("time per token, 1 request, 0.5.11, 0.5.17, 0.5.22", "1", "0.66, 0.57, 0.55"),
        ("time per token, 16 requests, the same", "1", "0.67, 0.58, 0.55"),
        ("time per token, 64 requests, the same", "1", "0.61, 0.63, 0.62"),
        ("kernels launched per verify step, 0.5.11 and 0.5.12.post1", "96", "59"),
        ("the same, 0.5.17, with mla.draft-extend-metadata", "95", "54"),
        ("kernels launched per verify step, 0.5.22, with mla.draft-extend-metadata", "72", "28"),
        ("memory of the graphs of 27 batch sizes up to 64, 0.5.22", "", "40 MB"),
        ("memory of the graphs of 4 batch sizes, 0.5.12.post1 and 0.5.17", "", "10 and 112 MB"),
        ("time of the boot that they take", "", "0.9 to 1.8 s"),
    ),
    condition=(
        "EAGLE, EAGLE3, MTP or STANDALONE with spec v2, topk = 1 and --attention-backend fa3 (the "
        "default on Hopper) for the draft, if the GPU waits for the host: targets that are small "
        "or widely sharded. Up to 0.5.10.post1 spec v2 is not the default."
    ),
    upstream=("sgl-project/sglang#36324", "sgl-project/sglang#40762"),
    built_in_since="0.5.23",
    markers=(
        Marker(
            definition=_EXTEND_CAPTURE,
            contains="graph_supported_backend_types.append(FlashAttentionBackend)",
        ),
    ),
    variants=(
        _early_extend(
            "0.5.9",
            "0.5.9",
            "install_by_draft",
            _EXTEND_GRAPHS,
            f"{_EXTEND_RUNNER}.replay",
            f"{_FLASH_STEP}.init_forward_metadata_capture_cuda_graph",
            f"{_FLASH_STEP}.init_forward_metadata_replay_cuda_graph",
        ),
        _early_extend(
            "0.5.10",
            "0.5.12.post1",
            "install_graphs",
            _EXTEND_GRAPHS,
            f"{_EXTEND_RUNNER}.replay",
            f"{_FLASH_STEP}.init_forward_metadata_capture_cuda_graph",
            f"{_FLASH_STEP}.init_forward_metadata_replay_cuda_graph",
        ),
        _early_extend(
            "0.5.13",
            "0.5.13.post1",
            "install_graphs",
            _EXTEND_GRAPHS,
            f"{_EXTEND_RUNNER}.replay",
            *_EXTEND_OUT_GRAPH,
        ),
        _early_extend(
            "0.5.14",
            "0.5.14",
            "install_capture",
            _EXTEND_CAPTURE,
            f"{_EXTEND_RUNNER}.execute",
            *_EXTEND_OUT_GRAPH,
        ),
        _early_extend(
            "0.5.15",
            "0.5.15.post1",
            "install_capture",
            _EXTEND_CAPTURE,
            f"{_EXTEND_RUNNER}.execute",
            *_EXTEND_OUT_GRAPH,
            f"{_FLASH_STEP}._init_full_cg_decode_metadata",
        ),
        _extend_graph("0.5.16", "0.5.21", "install_in_graph_reads", f"{_EXTEND_RUNNER}.execute"),
        _extend_graph("0.5.22", "0.5.22", "install"),
    ),
)


def _extend_metadata(first: str, last: str, *depends: str) -> Variant:
    return Variant(
        releases=between(first, last),
        install=f"{_HERE}.draft_extend_metadata:install",
        targets=(f"{_EXTEND_RUNNER}.execute",),
        depends=(
            *_EXTEND_OUT_GRAPH,
            *_EXTEND_IN_GRAPH,
            *_WAR_BARRIER,
            f"{_FLASH_STEP}.init_cuda_graph_state",
            f"{_FLASH_STEP}.forward_extend",
            f"{_EXTEND_RUNNER}.__init__",
            *depends,
        ),
        awaits=(_UTILS, _FLASH),
    )


_DRAFT_EXTEND_METADATA = Patch(
    id="mla.draft-extend-metadata",
    proven_with=PROVEN["mla.draft-extend-metadata"],
    summary="the graph of FlashAttention's draft-extend builds its metadata once, not twice",
    why=(
        "The graph of a FlashAttention draft-extend begins with a kernel that writes lengths, "
        "their sums and the page table. Before each replay stock builds the same data with some "
        "ten eager launches. They gather and copy, for each request, a page table as wide as the "
        "context. Upstream skips that only for drafts of several layers."
    ),
    how=(
        "When the runner calls for the eager build, the patch gives the backend the graph's own "
        "metadata and writes nothing, because the graph does. Stock's code runs for sliding-window "
        "pools, whose eager build also clears the write targets of padding rows."
    ),
    gain=(
        "Small targets gain about 5 % of the time per token, because the GPU waits for the host. A "
        "busy GPU hides the gain; larger targets were not run. One H200, 0.5.23, a small DeepSeek "
        "with its own MTP layer, in turns in one Engine, on a machine whose processors had other "
        "work. The run ended before 64 requests; an earlier run of these showed no difference "
        "beyond its scatter. The tokens of 1,218 requests were the same."
    ),
    figures=(
        ("measured", "stock", "patched"),
        ("time per token, 1 request", "1", "0.957 (0.934 to 0.968)"),
        ("time per token, 16 requests", "1", "0.945 (0.911 to 0.960)"),
        ("kernels launched per verify step", "36.1", "28.1"),
        (
            "preparing the replay of a draft-extend, 1 to 64 requests",
            "358 to 388 µs",
            "171 to 179 µs",
        ),
        ("launches of that, context of 32,768 to 262,144 tokens", "9 to 10", "1"),
    ),
    worth=Worth(
        "a",
        "time per token of 16 requests, a small target on one H200, takes 0.945",
        "tests/mla/gpu/results.md",
        "| 0.5.23, 16 requests | 4.06 | 3.85 | 0.945 (0.911-0.960) |",
    ),
    condition=(
        "EAGLE, EAGLE3, MTP or STANDALONE with --attention-backend fa3 for the draft: on 0.5.23, "
        "and on 0.5.16 to 0.5.22 with mla.draft-extend-graph. The gain grows with the number of "
        "requests times the server's context length, not with the requests' own lengths."
    ),
    anchors=("sglang.kernels.ops.attention.metadata:draft_extend_set_metadata",),
    absent_because="before 0.5.16 no graph writes the metadata",
    variants=(
        _extend_metadata("0.5.16", "0.5.21"),
        _extend_metadata("0.5.22", "0.5.23", f"{_BASE}.shared_read_ends"),
    ),
)

_BOUND_EAGER = (f"{_FLASH_STEP}.init_forward_metadata",)
_MHA_TABLE = "trtllm_mha_page_table:build_trtllm_mha_page_table"


def _bound(first: str, last: str, install: str, targets: tuple[str, ...], *depends: str) -> Variant:
    return Variant(
        releases=between(first, last),
        install=f"{_HERE}.page_table_bound:{install}",
        targets=(f"{_FLASH_STEP}.init_cuda_graph_state", *targets),
        depends=(f"{_FLASH_STEP}.__init__", *depends),
        awaits=(_UTILS,),
    )


_PAGE_TABLE_BOUND = Patch(
    id="mla.page-table-bound",
    proven_with=PROVEN["mla.page-table-bound"],
    summary=("FlashAttention's page tables have room for a speculative step at the context limit"),
    why=(
        "A speculative step reads past the context by the tokens that it drafts. The request pool "
        "has room for those, but the rows of FlashAttention's page tables end with the context. "
        "Near the limit the kernel takes for pages whatever lies there: the next request's "
        "entries, or anything behind the last row. The server then dies of an illegal memory "
        "access. 0.5.13 and 0.5.14 stop with an AssertionError. From 0.5.10 to 0.5.12.post1, and "
        "in a verify of 0.5.15 to 0.5.21, the entries past a row are written into the next "
        "request's first pages."
    ),
    how=(
        "Rows of the graphs' tables continue in memory past their width. The width itself stays, "
        "because FlashAttention splits its work by it. Eager tables are as long as the request "
        "pool's rows and are shown with stock's width. So each batch gives what it gave before. "
        "Past the limit, where no token is ever delivered, the kernel reads the page of padding."
    ),
    gain=(
        "A server near its context limit does not die, and no other request's pages are "
        "overwritten; nobody gains time. One H200, 0.5.22, FlashAttention 3, two tokens before the "
        "limit, with other memory behind the table. In five sizes the longer rows gave the same "
        "bits."
    ),
    figures=(
        ("measured", "stock", "patched"),
        ("eager draft-extend", "illegal memory access, the process ends", "runs"),
        ("verify", "illegal memory access, the process ends", "runs"),
        ("preparing an eager draft-extend, 1 request", "174 µs", "181 µs"),
        ("preparing an eager draft-extend, 64 requests", "184 µs", "210 µs"),
        ("preparing a replay", "", "as stock"),
    ),
    worth=Worth(
        "b",
        "a server near its context limit dies of an illegal memory access in stock",
    ),
    condition=(
        "EAGLE, EAGLE3, MTP or STANDALONE with topk = 1 and --attention-backend fa3, and requests "
        "whose prompt and output end within the drafted tokens of the context length."
    ),
    upstream=("sgl-project/sglang#34239", "sgl-project/sglang#35985"),
    variants=(
        _bound(
            "0.5.9",
            "0.5.12.post1",
            "install_graphs",
            (),
            *_BOUND_EAGER,
            f"{_FLASH_STEP}.init_forward_metadata_capture_cuda_graph",
            f"{_FLASH_STEP}.init_forward_metadata_replay_cuda_graph",
            f"{_FLASH}:normal_decode_set_metadata",
        ),
        _bound(
            "0.5.13",
            "0.5.14",
            "install_checked_graphs",
            (f"{_ATTENTION}.utils:assert_buffer_fits",),
            *_BOUND_EAGER,
            *_EXTEND_OUT_GRAPH,
            f"{_ATTENTION}.triton_ops.metadata:normal_decode_set_metadata",
        ),
        _bound(
            "0.5.15",
            "0.5.15.post1",
            "install_graphs",
            (),
            *_BOUND_EAGER,
            *_EXTEND_OUT_GRAPH,
            f"{_ATTENTION}.triton_ops.metadata:normal_decode_set_metadata",
            f"{_ATTENTION}.triton_ops.{_MHA_TABLE}",
        ),
        _bound(
            "0.5.16",
            "0.5.22",
            "install",
            _BOUND_EAGER,
            *_EXTEND_OUT_GRAPH,
            f"{_FLASH_STEP}.init_forward_metadata_in_graph",
            "sglang.kernels.ops.attention.metadata:normal_decode_set_metadata",
            "sglang.kernels.ops.attention.metadata:draft_extend_set_metadata",
            f"sglang.kernels.ops.kvcache.{_MHA_TABLE}",
        ),
        _bound(
            "0.5.23",
            "0.5.23",
            "install",
            _BOUND_EAGER,
            *_EXTEND_OUT_GRAPH,
            f"{_FLASH_STEP}.init_forward_metadata_in_graph",
            "sglang.kernels.ops.attention.metadata:normal_decode_set_metadata",
            "sglang.kernels.ops.attention.metadata:draft_extend_set_metadata",
        ),
    ),
)

PATCHES: tuple[Patch, ...] = (
    _DRAFT_METADATA,
    _VERIFY_MASK_FILL,
    _SYNC_OPT_OUT,
    _SHARED_DRAFT_TABLES,
    _DRAFT_EXTEND_GRAPH,
    _DRAFT_EXTEND_METADATA,
    _PAGE_TABLE_BOUND,
)
