"""Gives Gemma 2 and 3, EXAONE 4 and Olmo 3 a sliding-window pool, for text only.

Stock turns it off by architecture (``arg_groups/model_overrides``), because of a test that failed
when there was one way to hold windows and only Llama 4 had it (sgl-project/sglang#7367, and
#8895, #9123 for Gemma 3). What holds windows has been written anew since.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ....model.declaration import Declaration
from ....model.patch import of
from ..proven import POOLED
from ..references import ALLOCATOR, EVICTS

CONTEXT = "sglang.srt.runtime_context"
_CONFIG = "sglang.srt.configs.model_config"
_MODELS = "sglang.srt.models"
_ATTENTION = "sglang.srt.layers.attention"
_EXECUTOR = "sglang.srt.model_executor"
_SETUP = f"{_EXECUTOR}.model_runner_components"

_POOL = "sglang.srt.mem_cache.swa_memory_pool:SWAKVPool"
_METADATA = ("__init__", "init_forward_metadata", "forward_extend", "forward_decode")

PATCH = Declaration(
    *(__name__, "0.5.21 … 0.5.23"),
    only_with=("poolless-windows", "windows", "torch", "known-pool-backend", "one-backend"),
    proven_with=POOLED,
    # Older schedulers are told their ranks one by one.
    anchors=(f"{CONTEXT}:SpawnRanks",),
    absent_because="tested only on 0.5.21 and later",
    depends=(
        f"{_CONFIG}:is_hybrid_swa_model",
        f"{_CONFIG}:get_hybrid_layer_ids",
        f"{CONTEXT}:attention_backends",
        # How layers tell their kinds.
        *of(_MODELS, "gemma2:Gemma2Attention.__init__", "gemma3_causal:Gemma3Attention.__init__"),
        *of(_MODELS, "exaone4:Exaone4Attention.__init__", "olmo2:Olmo2Attention.__init__"),
        # How both pools are made, written, read and freed.
        *of(_POOL, "__init__", "set_kv_buffer", "translate_loc_from_full_to_swa"),
        f"{ALLOCATOR}.free_swa",
        f"{_EXECUTOR}.pool_configurator:create_memory_pool_configurator",
        f"{_SETUP}.layer_setup:resolve_layer_indices",
        f"{_SETUP}.load_model_utils:resolve_sliding_window_size",
        *of(f"{_ATTENTION}.triton_backend:TritonAttnBackend", *_METADATA),
        *of(f"{_ATTENTION}.flashattention_backend:FlashAttentionBackend", *_METADATA),
        *EVICTS,
    ),
    awaits=(CONTEXT,),
    anytime="pools keep the sizes that they were made with, whoever asked for them",
)

logger = logging.getLogger("sglang_perf_patches")

BACKENDS = ("fa3", "triton")
"""Those tested with both pools. ``torch_native`` reads windows where it did not write them."""

_NO_BEAMS = (
    "swa.window-pool: this server answers 400 to requests with beam_width > 1: sglang has no beam "
    "search with a window pool. Take the patch out of SGLANG_PERF_PATCHES if you need it."
)


@PATCH.replaces(f"{_CONFIG}:ModelConfig._derive_hybrid_model")
def _derive_hybrid_model(self, *, patch, stock):
    """Describe the model as one that asks for a window pool, before stock decides."""
    context = patch.module(CONTEXT)
    # Other processes publish other roles, or nothing while they resolve arguments. No draft model
    # comes here: speculation gates the patch.
    if context.publish_role() == "scheduler" and None not in context.attention_backends():
        layers = windowed_layers(self)
        reason = unserved(self, layers, context)
        if reason:
            patch.gate(reason)
        else:
            # Stock's own way for models that it does not know by name.
            self.hf_text_config.is_hybrid_swa = True
            self.hf_text_config.hybrid_layer_pattern = layers
            self.disable_hybrid_swa_memory = False
            if not patch.ran.seen:
                # Stock has no flag for beam search, so nothing can be gated by it.
                logger.warning(_NO_BEAMS)
            patch.ran.seen = True
    stock(self)


def unserved(model: Any, layers: Sequence[int] | None, context: Any) -> str | None:
    """Why a ``ModelConfig`` is left to stock; None if it gets a window pool."""
    if layers is None:
        return f"{model.hf_config.architectures[0]} has the pools that stock gives it"
    if not getattr(model.hf_text_config, "sliding_window", None) or len({*layers}) < 2:
        return "not both kinds of layers: no layer has a sliding window, or every layer has one"
    if context.get_server_args().disable_hybrid_swa_memory:
        return "--disable-hybrid-swa-memory is set"
    if model.is_multimodal:
        return "the model takes images, and image tokens attend to later tokens"
    both_directions = getattr(model.hf_text_config, "use_bidirectional_attention", False)
    if both_directions or not model.is_generation:
        return "prompts are read in both directions"
    backends = {*context.attention_backends()}
    if len(backends) > 1:
        return "prefill and decode have different attention backends"
    if not backends <= {*BACKENDS}:
        return f"attention was tested only on {', '.join(BACKENDS)}, not on {backends.pop()}"
    return None


def windowed_layers(model: Any) -> list[int] | None:
    """For each layer 1 if it attends within the window, else 0, as the model's own code decides.

    None for a model that is not one of those.
    """
    name, text = model.hf_config.architectures[0], model.hf_text_config
    if name == "Gemma2ForCausalLM":
        return [1 - layer % 2 for layer in range(text.num_hidden_layers)]
    if name == "Exaone4ForCausalLM":
        every = len(getattr(text, "sliding_window_pattern", None) or "")
        layers = range(1, text.num_hidden_layers + 1)
        return [int(layer % every != 0) for layer in layers] if every else []
    if name in {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "Olmo2ForCausalLM"}:
        kinds = getattr(text, "layer_types", None) or []
        return [int(kind == "sliding_attention") for kind in kinds[: text.num_hidden_layers]]
    return None
