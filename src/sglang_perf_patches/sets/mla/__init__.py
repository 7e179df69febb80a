"""Speculative decoding with MLA, and the attention backends that draft and verify for it."""

from ...model.patch import Marker, Patch, Variant, Worth
from ...model.releases import between
from .proven import PROVEN

SUMMARY = "host syncs and dead metadata work in speculative decoding"

_HERE = "sglang_perf_patches.sets.mla"
_ATTENTION = "sglang.srt.layers.attention"
_SPECULATIVE = "sglang.srt.speculative"
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
        awaits=(_FORWARD_BATCH,),
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
    )


_DRAFT_METADATA = Patch(
    id="mla.draft-metadata",
    proven_with=PROVEN["mla.draft-metadata"],
    summary="the TRT-LLM MLA draft prepares what its kernel reads, once for all steps",
    worth=Worth(
        "c",
        "sgl-project/sglang#26241",
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

_DRAFTS = (
    f"{_EAGLE_WORKER}:EagleDraftWorker.draft",
    f"{_SPECULATIVE}.multi_layer_eagle_worker_v2:MultiLayerEagleDraftWorker.draft",
)
_GRAPH_METADATA = (
    f"{_TRITON}._update_target_verify_buffers",
    f"{_TRITON}._build_cuda_graph_forward_metadata",
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
    worth=Worth(
        "c",
        "sgl-project/sglang#26824",
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
            awaits=(_FORWARD_BATCH,),
        ),
        Variant(
            releases=between("0.5.14", "0.5.15.post1"),
            install=f"{_HERE}.sync_opt_out:install_hybrid",
            targets=_OPT_OUT_TARGETS,
            depends=(*_OPT_OUT_DEPENDS, *_DRAFTS, *_OPT_OUT_TRITON, *_OPT_OUT_TRTLLM),
            awaits=(_FORWARD_BATCH,),
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
            awaits=(_FORWARD_BATCH,),
        ),
    ),
)

_FLASH = f"{_ATTENTION}.flashattention_backend"
_FLASH_STEP = f"{_FLASH}:FlashAttentionBackend"
_FLASH_DRAFT = f"{_FLASH}:FlashAttentionMultiStepBackend"

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
        awaits=(_FLASH,),
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
        awaits=(_FLASH,),
    )


_DRAFT_EXTEND_GRAPH = Patch(
    id="mla.draft-extend-graph",
    proven_with=PROVEN["mla.draft-extend-graph"],
    kind="policy",
    summary="FlashAttention's draft-extend is replayed from a graph instead of launched eagerly",
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
        awaits=(_FLASH,),
    )


_DRAFT_EXTEND_METADATA = Patch(
    id="mla.draft-extend-metadata",
    proven_with=PROVEN["mla.draft-extend-metadata"],
    summary="the graph of FlashAttention's draft-extend builds its metadata once, not twice",
    worth=Worth(
        "a",
        "time per token of 16 requests, a small target on one H200, takes 0.945",
        "tests/mla/gpu/results.md",
        "metadata-16",
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
    )


_PAGE_TABLE_BOUND = Patch(
    id="mla.page-table-bound",
    proven_with=PROVEN["mla.page-table-bound"],
    summary=("FlashAttention's page tables have room for a speculative step at the context limit"),
    worth=Worth(
        "b",
        "a server near its context limit dies of an illegal memory access in stock",
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
    _SYNC_OPT_OUT,
    _DRAFT_EXTEND_GRAPH,
    _DRAFT_EXTEND_METADATA,
    _PAGE_TABLE_BOUND,
)
