"""Runs the attention of one request's prefill in the CUDA graph, on FlashAttention 3."""

from ....model.declaration import Declaration, gains
from ....model.patch import of

ATTENTION = "sglang.srt.layers.attention"
BACKEND = f"{ATTENTION}.flashattention_backend:FlashAttentionBackend"
RADIX = "sglang.srt.layers.radix_attention:RadixAttention"
_EXECUTOR = "sglang.srt.model_executor"
RUNNER = f"{_EXECUTOR}.runner.prefill_cuda_graph_runner:PrefillCudaGraphRunner"
BREAKABLE = f"{_EXECUTOR}.runner_backend_utils.breakable_cuda_graph.breakable_cuda_graph"
_GRAPHS = f"{_EXECUTOR}.runner_backend.breakable_cuda_graph_backend:BreakableCudaGraphBackend"

PATCH = Declaration(
    *(__name__, "0.5.23"),
    only_with=(
        *("windows", "no-chunks", "prefills", "torch", "fa3-prefills", "one-backend"),
        "breakable-prefills",
    ),
    proven_with={
        **dict.fromkeys(
            (
                *("pages", "no-window-pool", "no-radix-cache", "whole-prefills", "mixed-chunks"),
                *("priorities", "no-overlap", "sessions", "data-parallel", "prefill-server"),
                # What the layers between compute, both of the bucket's graphs capture from stock.
                *("quantised-weights", "hierarchical-cache"),
            ),
            "verify",
        ),
        **dict.fromkeys(("tensor-parallel", "no-cuda-graphs"), "tests/swa/prefill_rank.py: main"),
    },
    gain_with="-tensor-parallel | tensor-parallel",
    worth=gains(
        "Gemma 3 4B on an H200: the first token of 130 takes 0.756 of stock's time",
        "swa.md#attention-4b-130",
    ),
    absent_because="this release breaks its prefill graphs in another way, or has none",
    anchors=(f"{RADIX}._eager_attention",),
    depends=(
        *of(RUNNER, "__init__", "capture_prepare", "load_batch", "_run_forward"),
        *of(RUNNER, "_init_forward_metadata_for_capture", "_prefill_forward_context"),
        *of(RUNNER, "_shape_key", "execute", "_execute_body_capture"),
        *of(_GRAPHS, "__init__", "capture_one", "replay"),
        f"{BREAKABLE}:eager_on_graph",
        f"{BREAKABLE}:BreakableCUDAGraph.replay",
        *of(BACKEND, "__init__", "init_forward_metadata", "forward_extend"),
        *of(BACKEND, "get_paged_mha_kv_cache", "prepare_paged_mha_query"),
        *of(RADIX, "__init__", "forward", "_eager_attention"),
        *of(ATTENTION, "graph_utils:attention_input_scope", "graph_utils:_zero_padded_tokens"),
        *of("sglang.srt.mem_cache.swa_memory_pool:SWAKVPool", "set_kv_buffer", "get_kv_buffer"),
        "sglang.srt.managers.cache_controller:LayerDoneCounter.wait_until",
        "sglang.srt.distributed.parallel_state:GroupCoordinator.barrier",
    ),
)
