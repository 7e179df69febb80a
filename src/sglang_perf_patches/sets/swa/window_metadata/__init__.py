"""``swa.window-metadata``."""

from ....model.patch import Marker, Patch, Worth, of, variant
from ..proven import WINDOWS
from ..references import EVICT_WINDOWS, EVICTS, SCHEDULE

_BACKEND = "sglang.srt.layers.attention.triton_backend"
FILLS = f"{_BACKEND}:update_sliding_window_buffer"
_POOLS = "sglang.srt.mem_cache.swa_memory_pool"
POOL = f"{_POOLS}:SWAKVPool"
_ATTENTION = f"{_BACKEND}:TritonAttnBackend"
_SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"
_GRAPHS = "sglang.srt.model_executor.runner.decode_cuda_graph_runner:DecodeCudaGraphRunner"
_TRANSLATOR = "sglang.srt.mem_cache.kv_index_translator:KVIndexTranslator"

_RELIES_ON = (
    # Who reads the buffer, and that none does behind the last window's end.
    *of(_ATTENTION, "__init__", "init_forward_metadata", "_update_decode_kv_buffers"),
    *of(_ATTENTION, "forward_extend", "forward_decode", "_forward_extend_unified"),
    "sglang.kernels.ops.attention.extend_attention:build_unified_kv_indices",
    # What translates.
    *of(POOL, "__init__", "translate_loc_from_full_to_swa"),
    *of(_TRANSLATOR, "fill_packed_read_stream", "reads_are_translated"),
    # What the host does to slots while a step is prepared: it comes behind that on the GPU, and
    # spares the windows of steps that run.
    *of(_SCHEDULER, "event_loop_overlap", "_apply_war_barrier"),
    *of(_GRAPHS, "execute", "_publish_read_done"),
    *EVICTS,
    EVICT_WINDOWS,
)


_SHARED = {"targets": (FILLS,), "depends": _RELIES_ON, "awaits": (_POOLS,)}

PATCH = Patch(
    id="swa.window-metadata",
    only_with=("windows", "torch", "triton"),
    gain_with="window-pool",
    proven_with=WINDOWS,
    summary="Triton attention translates its window slots without a wait for the GPU",
    worth=Worth(
        "a",
        "on 0.5.21, a token of 16 requests to gpt-oss on Triton takes 0.904 of stock's time",
        "tests/benchmarks/results/swa.md",
        "windows-21-16",
    ),
    upstream=("sgl-project/sglang#38137",),
    upstream_note="which was closed. 0.5.22 translates the slots in the kernel that gathers them",
    built_in_since="0.5.22",
    markers=(Marker(definition=FILLS, contains="token_mapping"),),
    # It came with the barrier.
    anchors=(f"{SCHEDULE}:NextBatchPlan",),
    absent_because=(
        "before 0.5.16 stock needs the wait: it keeps the last step from freeing slots that the "
        "running step still reads"
    ),
    variants=(
        variant(__name__, "0.5.16 … 0.5.18", **_SHARED),
        variant(__name__, "0.5.19", "install_with_table", **_SHARED),
        variant(__name__, "0.5.20 … 0.5.21", "install_with_translator", **_SHARED),
    ),
)
