"""What the release reads of each recipe's model: the configuration that is published with it.

Left out is what changes no resolved argument: most of a model's dimensions.
"""

from collections.abc import Mapping
from typing import Any

Config = dict[str, Any]


def _model(architecture: str, kind: str, **more: Any) -> Config:
    return {"architectures": [architecture], "model_type": kind, "torch_dtype": "bfloat16", **more}


def _fp8(**more: Any) -> Config:
    blocks = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128] * 2}
    return {"quantization_config": blocks, **more}


def _windows(layers: int, every: int) -> list[str]:
    """The kinds of layers, of which every so many-th has full attention."""
    kinds = ("sliding_attention", "full_attention")
    return [kinds[(layer + 1) % every == 0] for layer in range(layers)]


def _gpt_oss(layers: int) -> Config:
    return _model(
        *("GptOssForCausalLM", "gpt_oss"),
        sliding_window=128,
        max_position_embeddings=131072,
        quantization_config={"quant_method": "mxfp4"},
        num_hidden_layers=layers,
        layer_types=_windows(layers, 2),
    )


_LATENT = {
    "num_hidden_layers": 61,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 163840,
}
_FP4 = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
_MLX_4BIT = {"quantization": {"group_size": 64, "bits": 4}}
_QWEN = ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe")

MODELS: Mapping[str, Config] = {
    "qwen3-next-80b": _model("Qwen3NextForCausalLM", "qwen3_next"),
    "qwen3-next-80b-fp8": _model("Qwen3NextForCausalLM", "qwen3_next", **_fp8()),
    "qwen3.5-397b": _model(*_QWEN),
    "qwen3.5-397b-fp8": _model(*_QWEN, **_fp8()),
    "qwen3.5-397b-fp4": _model(*_QWEN, **_FP4),
    "qwen3.5-35b": _model(*_QWEN),
    "qwen3.6-35b-fp8": _model(*_QWEN, **_fp8()),
    "qwen3.6-35b-4bit": _model(*_QWEN, **_MLX_4BIT),
    "qwen3.5-4b": _model("Qwen3_5ForConditionalGeneration", "qwen3_5"),
    "nemotron-3-nano-fp8": _model(
        *("NemotronHForCausalLM", "nemotron_h"),
        quantization_config={"quant_method": "modelopt", "quant_algo": "FP8"},
    ),
    "nemotron-3-super": _model("NemotronHForCausalLM", "nemotron_h"),
    "kimi-linear-48b": _model(
        *("KimiLinearForCausalLM", "kimi_linear"),
        num_hidden_layers=27,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        max_position_embeddings=1048576,
        linear_attn_config={
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "kda_layers": [each for each in range(1, 27) if each % 4],
            "head_dim": 128,
            "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
    ),
    "falcon-h1-7b": _model("FalconH1ForCausalLM", "falcon_h1"),
    "ring-2.5-1t": _model(
        *("BailingMoeV2_5ForCausalLM", "bailing_hybrid"),
        **_fp8(**_LATENT | {"num_hidden_layers": 80, "layer_group_size": 8}),
    ),
    "gpt-oss-20b": _gpt_oss(24),
    "gpt-oss-120b": _gpt_oss(36),
    "mimo-v2-flash": _model(
        *("MiMoV2FlashForCausalLM", "mimo_v2_flash"),
        **_fp8(
            num_hidden_layers=48,
            attention_chunk_size=128,
            num_attention_heads=64,
            num_key_value_heads=4,
            head_dim=192,
            v_head_dim=128,
            swa_num_attention_heads=64,
            swa_num_key_value_heads=8,
            swa_head_dim=192,
            swa_v_head_dim=128,
            hidden_size=4096,
            sliding_window=128,
            hybrid_layer_pattern=[0, *([1] * 5 + [0]) * 7, 1, 1, 1, 1, 0],
            vocab_size=152576,
            max_position_embeddings=262144,
        ),
    ),
    "gemma-3-27b": _model(
        *("Gemma3ForConditionalGeneration", "gemma3"),
        text_config={
            "model_type": "gemma3_text",
            "num_hidden_layers": 62,
            "sliding_window": 1024,
            "layer_types": _windows(62, 6),
        },
        vision_config={"model_type": "siglip_vision_model"},
    ),
    "gemma-4-31b": _model(
        *("Gemma4ForConditionalGeneration", "gemma4"),
        text_config={
            "model_type": "gemma4_text",
            "num_hidden_layers": 60,
            "sliding_window": 1024,
            "layer_types": _windows(60, 6),
        },
        vision_config={"model_type": "gemma4_vision"},
        audio_config=None,
    ),
    "step-3.5-flash": _model(
        *("Step3p5ForCausalLM", "step3p5"),
        num_hidden_layers=45,
        sliding_window=512,
        layer_types=_windows(45, 4),
        num_nextn_predict_layers=3,
    ),
    "llama-4-scout": _model(
        *("Llama4ForConditionalGeneration", "llama4"),
        text_config={
            "model_type": "llama4_text",
            "num_hidden_layers": 48,
            "attention_chunk_size": 8192,
            "max_position_embeddings": 10485760,
        },
        vision_config={"model_type": "llama4_vision_model"},
    ),
    "deepseek-v4-flash": _model(
        *("DeepseekV4ForCausalLM", "deepseek_v4"),
        **_fp8(
            num_hidden_layers=43,
            num_attention_heads=64,
            num_key_value_heads=1,
            head_dim=512,
            hidden_size=4096,
            qk_rope_head_dim=64,
            sliding_window=128,
            compress_ratios=[0, 0, *[4, 128] * 20, 4, 0],
            index_n_heads=64,
            index_head_dim=128,
            index_topk=512,
            vocab_size=129280,
            max_position_embeddings=1048576,
        ),
    ),
    "deepseek-v3": _model("DeepseekV3ForCausalLM", "deepseek_v3", **_fp8(**_LATENT)),
    "deepseek-v3.2": _model(
        *("DeepseekV32ForCausalLM", "deepseek_v32"),
        **_fp8(**_LATENT, index_n_heads=64, index_head_dim=128, index_topk=2048),
    ),
    "glm-4.7-flash": _model(
        *("Glm4MoeLiteForCausalLM", "glm4_moe_lite"),
        **_LATENT | {"num_hidden_layers": 47, "q_lora_rank": 768},
    ),
    "glm-5-fp8": _model(
        *("GlmMoeDsaForCausalLM", "glm_moe_dsa"),
        **_fp8(
            **_LATENT | {"num_hidden_layers": 78, "q_lora_rank": 2048},
            index_n_heads=32,
            index_head_dim=128,
            index_topk=2048,
        ),
    ),
    "kimi-k2": _model("DeepseekV3ForCausalLM", "kimi_k2", **_fp8(**_LATENT)),
    "kimi-k2.5": _model(
        *("KimiK25ForConditionalGeneration", "kimi_k25"),
        text_config=_model("DeepseekV3ForCausalLM", "deepseek_v3", **_LATENT),
        vision_config={"hidden_size": 1152},
    ),
    "llama3-8b-4bit": _model("LlamaForCausalLM", "llama", num_hidden_layers=32, **_MLX_4BIT),
    "qwen3-0.6b": _model("Qwen3ForCausalLM", "qwen3", num_hidden_layers=28),
    "qwen3-0.6b-4bit": _model("Qwen3ForCausalLM", "qwen3", num_hidden_layers=28, **_MLX_4BIT),
    "qwen3-30b": _model("Qwen3MoeForCausalLM", "qwen3_moe", num_hidden_layers=48),
    "minimax-m2.5": _model("MiniMaxM2ForCausalLM", "minimax_m2", **_fp8(num_hidden_layers=62)),
    "qwen3-235b": _model("Qwen3MoeForCausalLM", "qwen3_moe", num_hidden_layers=94),
    "draft": _model("LlamaForCausalLMEagle3", "llama", num_hidden_layers=1),
}
"""Name → its ``config.json``."""
