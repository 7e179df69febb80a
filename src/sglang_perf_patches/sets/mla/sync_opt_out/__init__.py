"""A speculative step does not wait for sequence lengths that no backend reads."""

from ....model.declaration import Declaration, ports
from ....model.patch import Marker, of
from .. import references as refs
from ..proven import METADATA

OVERLAP = "sglang.srt.managers.overlap_utils"

_HYBRID = f"{refs.ATTENTION}.hybrid_attn_backend:HybridAttnBackend"
_TRITON = f"{refs.ATTENTION}.triton_backend:TritonAttnBackend"
_WORKER = f"{refs.SPECULATIVE}.eagle_worker_v2"
_LAYERED = f"{refs.SPECULATIVE}.multi_layer_eagle_worker_v2"
_PIECEWISE = "sglang.srt.model_executor.piecewise_cuda_graph_runner:PiecewiseCudaGraphRunner"
_FORWARD = "sglang.srt.model_executor.model_runner:ModelRunner"

PATCH = Declaration(
    *(__name__, "0.5.13 … 0.5.16"),
    only_with=("speculation", "lengths-on-gpu", "plain-rotary"),
    gain_with="eagle triton",
    proven_with=dict.fromkeys(METADATA, "verify"),
    worth=ports("sgl-project/sglang#26824"),
    upstream=("sgl-project/sglang#26824", "sgl-project/sglang#28633", "sgl-project/sglang#26128"),
    built_in_since="0.5.17",
    markers=(
        Marker(
            definition=f"{_HYBRID}.__init__",
            contains="self.spec_attn_is_prefill and prefill_backend.needs_cpu_seq_lens",
        ),
    ),
    anchors=(f"{OVERLAP}:decide_needs_cpu_seq_lens",),
    absent_because=(
        "before 0.5.13 stock needs the wait: it keeps the next batch from rewriting req_to_token "
        "while the running step reads it. #26128 replaced the wait. Without the wait and without "
        "upstream's later barrier, the KV of a shared prefix could be overwritten"
    ),
    depends=(
        # They keep the host's lengths of a speculative batch exact.
        f"{OVERLAP}:FutureMap.resolve_seq_lens_cpu",
        "sglang.srt.managers.scheduler:Scheduler.init_overlap",
        f"{_WORKER}:EAGLEWorkerV2.spec_v2_attn_backends",
        f"{_LAYERED}:MultiLayerEagleWorkerV2.spec_v2_attn_backends",
        f"{refs.SPECULATIVE}.draft_utils:DraftBackendFactory",
        f"{refs.BASE}.needs_cpu_seq_lens",
        *of(_HYBRID, "__init__", "_select_backend", "init_cuda_graph_state"),
        *of(_TRITON, "needs_cpu_seq_lens", "init_forward_metadata"),
        *of(_TRITON, "init_forward_metadata_out_graph", "_update_target_verify_buffers"),
        f"{_TRITON}._build_cuda_graph_forward_metadata",
        f"{refs.ATTENTION}.triton_backend:TritonMultiStepDraftBackend",
    ),
    awaits=(refs.FORWARD_BATCH,),
)
# The workers draft themselves, and TRT-LLM MLA opts out too.
PATCH.on(
    "… 0.5.15.post1",
    depends=(
        f"{_WORKER}:EagleDraftWorker.draft",
        f"{_LAYERED}:MultiLayerEagleDraftWorker.draft",
        *of(refs.TRTLLM, "needs_cpu_seq_lens", "init_cuda_graph_state"),
        *of(refs.TRTLLM, "get_verify_buffers_to_fill_after_draft", "init_forward_metadata"),
        *of(refs.TRTLLM, "init_forward_metadata_out_graph", "_apply_cuda_graph_metadata"),
        refs.TRTLLM_DRAFT,
    ),
)
PATCH.on(
    "… 0.5.13.post1",
    depends=(
        f"{refs.SPECULATIVE}.eagle_info_v2:EagleDraftInputV2Mixin",
        f"{refs.SPECULATIVE}.eagle_info_v2:EagleVerifyInputV2Mixin.prepare_for_v2_verify",
        f"{refs.FORWARD_BATCH}:ForwardBatch.init_new",
        f"{_PIECEWISE}.can_run",
        *of(_FORWARD, "init_piecewise_cuda_graphs", "forward_extend"),
    ),
)
PATCH.on("0.5.14 …", only_with=("two-backends",))
PATCH.on("0.5.16", depends=(f"{refs.SPECULATIVE}.eagle_worker_common:build_eagle_verify_input",))
