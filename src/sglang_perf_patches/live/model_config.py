"""What a server's model is, as its release answers: read from the ``ModelConfig`` of its arguments.

The release makes it when it resolves the arguments, and keeps it with them. Nothing is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..model.feature import MISSING

_KEPT = ("_model_config", "model_config")
"""Where arguments keep it: from 0.5.19 on, and before."""
_WINDOWS = ("sliding_window", "sliding_window_size", "sliding_window_pattern")
_CHUNKS = "attention_chunk_size"  # Llama 4's windows
_STATES = "mamba2_cache_params"


def read(arguments: Any, name: str) -> Any:
    """An answer about the model; `MISSING` if the release has none.

    Args:
        arguments: ``ServerArgs``.
        name: ``has_mla``, ``has_states``, ``has_windows``, or an attribute of ``ModelConfig``.

    Raises:
        Exception: the model's configuration is unlike those that are known.
    """
    kept = (getattr(arguments, each, None) for each in _KEPT)
    config = next((each for each in kept if hasattr(each, "hf_config")), None)
    if config is None:
        return MISSING
    return _ANSWERS[name](config) if name in _ANSWERS else getattr(config, name, MISSING)


def _has_mla(config: Any) -> bool:
    return bool(config.attention_arch.name == "MLA")


def _has_states(config: Any) -> bool:
    """Whether any part has states: sglang sizes their pool by this property of its configs."""
    return any(hasattr(type(part), _STATES) for part in _parts(config))


def _has_windows(config: Any) -> bool:
    """Whether any layer may attend within a window, with a pool of its own or without."""
    return bool(config.is_hybrid_swa) or any(
        any(getattr(part, name, None) for name in (*_WINDOWS, _CHUNKS))
        or any("sliding" in str(kind) for kind in getattr(part, "layer_types", None) or ())
        for part in _parts(config)
    )


def _parts(config: Any) -> Iterator[Any]:
    """The configuration of the model, and those of its parts, such as its text."""
    yield config.hf_config
    yield config.hf_text_config
    yield from (part for part in vars(config.hf_config).values() if hasattr(part, "model_type"))


_ANSWERS: dict[str, Callable[[Any], bool]] = {
    "has_mla": _has_mla,
    "has_states": _has_states,
    "has_windows": _has_windows,
}
