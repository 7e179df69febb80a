"""Reads properties of a server's model from the release's own ``ModelConfig``, for `uses`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .feature import MISSING

_KEPT = ("_model_config", "model_config")  # attribute of ``ServerArgs``: from 0.5.19 on, and before
_WINDOWS = ("sliding_window", "sliding_window_size", "sliding_window_pattern")
_CHUNKS = "attention_chunk_size"  # Llama 4's windows
_STATES = "mamba2_cache_params"  # the property by which sglang sizes the pool of states
_GRANITE, _BAILING = ("GraniteMoeHybridConfig",), ("BailingHybridConfig",)
_MAMBA2 = (
    *("NemotronHConfig", "FalconH1Config", *_GRANITE),
    *("Mamba2Config", "MambaConfig", "FalconMambaConfig"),
)
"""The classes of the release whose models it runs by Mamba2's backend. LFM2 and ZAYA, which have
short convolutions only, have another backend from 0.5.15 on, and were never tested."""


def of_model(arguments: Any, name: str) -> Any:
    """Read a property of a server's model from the ``ModelConfig`` that the arguments hold.

    sglang makes that object when it resolves the arguments. Without it this returns `MISSING`.

    Args:
        arguments: ``ServerArgs``.
        name: one of `ANSWERS`, such as ``has_mla``, or an attribute of ``ModelConfig``.

    Raises:
        Exception: the configuration lacks something that every known one has.
    """
    kept = (getattr(arguments, each, None) for each in _KEPT)
    config = next((each for each in kept if hasattr(each, "hf_config")), None)
    if config is None:
        return MISSING
    return ANSWERS[name](config) if name in ANSWERS else getattr(config, name, MISSING)


def _has_delta_nets(config: Any) -> bool:
    """Whether any part has them, by the heads of their values; Jet's have none of that name."""
    return any(
        hasattr(part, "linear_num_value_heads")
        or str(getattr(part, "model_type", "")).startswith("jet")
        for part in _parts(config)
    )


def _has_mamba2(config: Any) -> bool:
    """Whether stock computes a part of the model by Mamba2 layers."""
    return any(
        _is_a(part, _MAMBA2) and (not _is_a(part, _GRANITE) or "mamba" in part.layer_types)
        for part in _parts(config)
    )


def _has_lightning(config: Any) -> bool:
    """Whether stock computes a part of the model by lightning attention."""
    return any(
        (_is_a(part, _BAILING) and not getattr(part, "use_kda", False))
        or getattr(part, "has_lightning_layers", False)
        for part in _parts(config)
    )


def _has_mrope(config: Any) -> bool:
    text = config.hf_text_config
    scaling = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None)
    return scaling is not None and "mrope_section" in scaling


def _has_window_pool(config: Any) -> bool:
    """Whether stock keeps KV of windows in its usual pool; DeepSeek V4 has pools of its own."""
    return bool(config.is_hybrid_swa) and not _architecture(config).startswith("DeepseekV4")


def _architecture(config: Any) -> str:
    return str((config.hf_config.architectures or ("",))[0])


def _is_a(part: Any, names: tuple[str, ...]) -> bool:
    """Whether a configuration is of one of these classes of the release."""
    return any(kind.__name__ in names for kind in type(part).__mro__)


def _has_windows(config: Any) -> bool:
    """Whether any layer may attend within a window, with the usual pool for it or without."""
    if _architecture(config).startswith("DeepseekV4"):
        return False  # nothing of its pools, sizes and metadata is what patches change
    return bool(config.is_hybrid_swa) or any(
        any(getattr(part, name, None) for name in (*_WINDOWS, _CHUNKS))
        or any("sliding" in str(kind) for kind in getattr(part, "layer_types", None) or ())
        for part in _parts(config)
    )


def _parts(config: Any) -> Iterator[Any]:
    """The Hugging Face configurations of the model and of its parts, such as its text model."""
    yield config.hf_config
    yield config.hf_text_config
    yield from (part for part in vars(config.hf_config).values() if hasattr(part, "model_type"))


ANSWERS: dict[str, Callable[[Any], Any]] = {
    "architecture": _architecture,
    "has_mla": lambda config: config.attention_arch.name == "MLA",
    "has_states": lambda config: any(hasattr(type(part), _STATES) for part in _parts(config)),
    "has_delta_nets": _has_delta_nets,
    "has_mamba2": _has_mamba2,
    "has_lightning": _has_lightning,
    "linear_kernel": lambda config: getattr(config.hf_config, "linear_backend", "seg_la"),
    "has_mrope": _has_mrope,
    "has_windows": _has_windows,
    "has_window_pool": _has_window_pool,
    "attends_in_chunks": lambda config: config.is_local_attention_model,
}
