"""What becomes of each patch in a server, by the release's resolved arguments and the patch's body.

It reads no declaration of features and uses (`model.setups`): each predicate repeats what the body
itself, and the stock code that it changes, need on sglang 0.5.23. What a patch was tested with is
its declaration's.
"""

import ast
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sglang_perf_patches.cli.ask import gpus

DELTA_NETS = (
    *("Qwen3NextForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    "Qwen3_5ForConditionalGeneration",
)
MAMBA2 = ("NemotronHForCausalLM", "FalconH1ForCausalLM")
LIGHTNING = ("BailingMoeV2_5ForCausalLM",)
STATES = (*DELTA_NETS, *MAMBA2, *LIGHTNING, "KimiLinearForCausalLM")
POOLED = (
    *("GptOssForCausalLM", "MiMoV2FlashForCausalLM", "Llama4ForConditionalGeneration"),
    *("Gemma4ForConditionalGeneration", "Step3p5ForCausalLM"),
)
WINDOWED = (*POOLED, "Gemma3ForConditionalGeneration")
LATENT = (
    *("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeLiteForCausalLM"),
    *("GlmMoeDsaForCausalLM", "KimiK25ForConditionalGeneration", "KimiLinearForCausalLM"),
    *LIGHTNING,
)
SEES = (*DELTA_NETS[1:], *("Gemma4ForConditionalGeneration", "KimiK25ForConditionalGeneration"))
"""Models that take images by default; of the others that can, only with ``--enable-multimodal``."""
_DRAFTING = ("EAGLE", "EAGLE3", "NEXTN")


class Server:
    """A recipe as the release resolved it, each argument as its ``repr``."""

    def __init__(self, architecture: str, gpu: str, arguments: Mapping[str, str]) -> None:
        self.architecture = architecture
        self.gpu = gpus.KINDS.get(gpu)
        self._arguments = arguments

    def __getattr__(self, name: str) -> Any:
        """An argument's value; the text of its ``repr`` if it is no literal."""
        text = self._arguments[name]
        try:
            return ast.literal_eval(text)
        except (SyntaxError, ValueError):
            return text

    @property
    def drafts(self) -> bool:
        return self.speculative_algorithm is not None

    @property
    def backends(self) -> tuple[str, str, str]:
        decode = self.decode_attention_backend or self.attention_backend
        return (
            self.prefill_attention_backend or self.attention_backend,
            decode,
            self.speculative_draft_attention_backend or decode,
        )

    @property
    def prefill_graphs(self) -> str:
        found = re.search(
            r"prefill=\w+\(backend=(?:<[^']*)?'(\w+)'", self._arguments["cuda_graph_config"]
        )
        assert found, self._arguments["cuda_graph_config"]
        return found[1]


def _prefills(server: Server) -> bool:
    return bool(server.gpu) and server.disaggregation_mode != "decode"


def _decodes_windows(server: Server) -> bool:
    return server.disaggregation_mode == "decode" and server.architecture in POOLED


def _mlx(server: Server) -> bool:
    return server.gpu is None


def _captures_delta_nets(server: Server) -> bool:
    return (
        server.architecture in DELTA_NETS
        and _prefills(server)
        and server.prefill_graphs == "breakable"
    )


ACTS: Mapping[str, Callable[[Server], bool]] = {
    **dict.fromkeys(
        ("mlx.hybrid-cache", "mlx.hybrid-defaults"),
        lambda server: _mlx(server) and server.architecture in STATES,
    ),
    **dict.fromkeys(
        (
            *("mlx.relay-device", "mlx.pool-write", "mlx.first-buffer", "mlx.last-row"),
            "mlx.length-groups",
        ),
        _mlx,
    ),
    **dict.fromkeys(
        ("mlx.kv-arena", "mlx.batched-prefill"),
        lambda server: _mlx(server) and server.max_running_requests != 1,
    ),
    "mlx.next-turn": lambda server: (
        _mlx(server) and server.architecture in WINDOWED and not server.disable_radix_cache
    ),
    # `FlashAttentionBackend` with drafts and topk = 1
    "mla.page-table-bound": lambda server: (
        server.drafts and (server.speculative_eagle_topk or 1) == 1 and "fa3" in server.backends
    ),
    # `FrozenKVMTPDraftWorker`, which verifies on `TritonAttnBackend`
    "mla.frozen-kv-lengths": lambda server: (
        server.speculative_algorithm == "FROZEN_KV_MTP"
        and server.speculative_eagle_topk == 1
        and server.backends[:2] == ("triton", "triton")
    ),
    # `TRTLLMMLAMultiStepDraftBackend`
    "mla.draft-metadata": lambda server: (
        server.drafts and server.architecture in LATENT and server.backends[2] == "trtllm_mla"
    ),
    "mla.request-broadcast": lambda server: (
        server.drafts
        and server.tp_size > 1
        and server.nnodes == 1
        and not (server.use_ray or server.sleep_on_idle)
    ),
    "mla.cache-acks": lambda server: (
        ACTS["mla.request-broadcast"](server) and server.enable_hierarchical_cache
    ),
    "mamba.gdn-prefill-graph": _captures_delta_nets,
    "mamba.mamba2-chunk-indices": lambda server: (
        server.architecture in MAMBA2 and _prefills(server)
    ),
    # `_prepare_seg_la_track_store`: it returns at once without tracked states
    "mamba.lightning-rows": lambda server: (
        server.architecture in LIGHTNING
        and _prefills(server)
        and str(server.mamba_radix_cache_strategy).startswith("extra_buffer")
    ),
    "mamba.slot-exhaustion": lambda server: (
        server.architecture in STATES and bool(server.gpu) and not server.disable_radix_cache
    ),
    "mamba.host-states": lambda server: (
        server.architecture in STATES and server.enable_hierarchical_cache
    ),
    "swa.prefill-graph": lambda server: (
        server.architecture in WINDOWED
        and server.architecture != "Llama4ForConditionalGeneration"  # its windows are chunks
        and _prefills(server)
        and server.prefill_graphs == "breakable"
        and server.backends[0] == "fa3"
    ),
    "swa.page-size-1": lambda server: _decodes_windows(server) and server.page_size == 1,
    "swa.idle-admission": _decodes_windows,
    "swa.window-pool": lambda server: server.architecture == "Gemma3ForConditionalGeneration",
    # `HybridSWAPoolConfigurator` itself, not the subclass that stock takes without a prefix cache
    "swa.pool-ratio": lambda server: (
        server.architecture in WINDOWED and bool(server.gpu) and not server.disable_radix_cache
    ),
}
"""Patch that applies on 0.5.23 → whether the code that it changes has any effect in a server."""

GATES: Mapping[str, Callable[[Server], bool]] = {
    # `unserved` of each body, as far as arguments decide it
    "mamba.gdn-prefill-graph": lambda server: (
        (server.linear_attn_prefill_backend or server.linear_attn_backend) != "triton"
    ),
    "mamba.slot-exhaustion": lambda server: server.enable_hierarchical_cache,
    "swa.idle-admission": lambda server: (
        server.drafts and max(server.dp_size, server.attn_dp_size or 1) > 1
    ),
    "swa.prefill-graph": lambda server: server.backends[0] != server.backends[1],
    "swa.window-pool": lambda server: not {*server.backends[:2]} < {"fa3", "triton"},
    "swa.pool-ratio": lambda server: (
        not server.max_running_requests
        or server.swa_full_tokens_ratio != 0.8
        or server._swa_full_tokens_ratio_explicitly_set
    ),
}
"""Patch → whether its own code turns itself off in a server, though it would have an effect."""

FEATURES: Mapping[str, Callable[[Server], bool]] = {
    "tensor-parallel": lambda server: server.tp_size > 1,
    "data-parallel": lambda server: server.dp_size > 1,
    "dp-attention": lambda server: server.enable_dp_attention or (server.attn_dp_size or 1) > 1,
    "expert-parallel": lambda server: server.ep_size > 1 or server.moe_dense_tp_size is not None,
    "expert-all-to-all": lambda server: server.moe_a2a_backend != "none",
    "two-batch-overlap": lambda server: server.enable_two_batch_overlap,
    "no-overlap": lambda server: server.disable_overlap_schedule,
    "several-steps": lambda server: server.num_continuous_decode_steps > 1,
    "whole-prefills": lambda server: server.chunked_prefill_size in (0, -1),
    "multimodal": lambda server: server.enable_multimodal or server.architecture in SEES,
    "eagle": lambda server: server.speculative_algorithm in _DRAFTING,
    "draft-trees": lambda server: (server.speculative_eagle_topk or 1) > 1,
    "layered-drafts": lambda server: server.enable_multi_layer_eagle,
    "prefill-server": lambda server: server.disaggregation_mode == "prefill",
    "decode-server": lambda server: server.disaggregation_mode == "decode",
    "no-radix-cache": lambda server: server.disable_radix_cache,
    "pages": lambda server: server.page_size > 1,
    "quantised-kv": lambda server: server.kv_cache_dtype not in ("auto", "bfloat16"),
    "tracked-states": lambda server: server.mamba_radix_cache_strategy == "extra_buffer",
    "other-tracking": lambda server: server.mamba_radix_cache_strategy == "extra_buffer_lazy",
    "no-window-pool": lambda server: server.disable_hybrid_swa_memory,
    "quantised-weights": lambda server: server.quantization is not None,
    "no-cuda-graphs": lambda server: server.disable_cuda_graph or server.disable_decode_cuda_graph,
    "hip": lambda server: bool(server.gpu and server.gpu.rocm),
    "other-gpu": lambda server: server.gpu is not None and server.gpu.capability != (9, 0),
}
"""What patches may not have been tested with → whether a server has it."""


def features(server: Server) -> set[str]:
    return {name for name, is_on in FEATURES.items() if is_on(server)}


def state(patch: str, server: Server, tested: Collection[str]) -> str:
    """What becomes of a patch that was tested with these features."""
    if not ACTS[patch](server):
        return "not needed"
    is_off = patch in GATES and GATES[patch](server)
    return "gated" if is_off or features(server) - set(tested) else "live"
