"""Reads what no argument of a server says by itself: of its model, and of several arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from .feature import MISSING, NOTHING

_KEPT = ("_model_config", "model_config")  # attribute of ``ServerArgs``: from 0.5.19 on, and before
_WINDOWS = ("sliding_window", "sliding_window_size", "sliding_window_pattern")
_CHUNKS = "attention_chunk_size"  # Llama 4's windows
_STATES = "mamba2_cache_params"  # the property by which sglang sizes the pool of states
_GRANITE, _BAILING = ("GraniteMoeHybridConfig",), ("BailingHybridConfig",)
_MAMBA2 = ("NemotronHConfig", "FalconH1Config", "Mamba2Config", "MambaConfig", "FalconMambaConfig")
"""With Granite's, the classes of the release whose models it runs by Mamba2's backend. LFM2 and
ZAYA have only short convolutions, another backend from 0.5.15 on, and were never tested."""


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


def _any_part(has: Callable[[Any], bool], config: Any) -> bool:
    return any(map(has, _parts(config)))


def _is_delta_net(part: Any) -> bool:
    """By the heads of its values; Jet's have none of that name."""
    is_jet = str(getattr(part, "model_type", "")).startswith("jet")
    return is_jet or hasattr(part, "linear_num_value_heads")


def _is_mamba2(part: Any) -> bool:
    """Whether stock computes it by Mamba2 layers."""
    if _is_a(part, _GRANITE):
        return "mamba" in part.layer_types
    return _is_a(part, _MAMBA2)


def _is_lightning(part: Any) -> bool:
    """Whether stock computes it by lightning attention."""
    is_bailing = _is_a(part, _BAILING) and not getattr(part, "use_kda", False)
    return is_bailing or getattr(part, "has_lightning_layers", False)


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
    "has_states": partial(_any_part, lambda part: hasattr(type(part), _STATES)),
    "has_delta_nets": partial(_any_part, _is_delta_net),
    "has_mamba2": partial(_any_part, _is_mamba2),
    "has_lightning": partial(_any_part, _is_lightning),
    "linear_kernel": lambda config: getattr(config.hf_config, "linear_backend", "seg_la"),
    "has_mrope": _has_mrope,
    "has_windows": _has_windows,
    "has_window_pool": _has_window_pool,
    "attends_in_chunks": lambda config: config.is_local_attention_model,
}


Read = Callable[[str], Any]
"""See `feature.Server.read`."""

_BACKENDS = {
    "prefill": ("prefill_attention_backend",),
    "decode": ("decode_attention_backend",),
    "draft": ("speculative_draft_attention_backend", "decode_attention_backend"),
}
"""Phase → the arguments that come before the attention backend of the whole server."""


def _attention(phase: str, read: Read) -> Any:
    """The attention backend of a phase; raises LookupError if the release chooses it later."""
    for name in (*_BACKENDS[phase], "attention_backend"):
        backend = read(name)
        if backend is not MISSING and backend:
            return backend
    raise LookupError(phase)


def _attention_ranks(read: Read) -> Any:
    """How many ranks compute the attention of a request."""
    parts = read("dp_size") if read("enable_dp_attention") else 1
    newer = read("attn_dp_size")  # newer releases resolve both to this one
    return read("tp_size") // (parts if newer is MISSING else max(parts, newer))


def _prefill_graphs(read: Read) -> Any:
    config = read("cuda_graph_config")
    return config if config is MISSING else config.prefill.backend


def _delta_kernel(read: Read) -> Any:
    """The prefill kernel of gated delta nets, by stock's choice.

    ``flashinfer-pool`` is FlashInfer's other kernel: on a Blackwell, or with states that it
    converts.
    """
    names = ("linear_attn_prefill_backend", "linear_attn_backend", "mamba_ssm_dtype")
    given, base, dtype = map(read, names)
    kernel = given or base
    is_narrow = dtype not in (None, "float32")
    if kernel != "flashinfer" and (kernel != "triton" or given or not is_narrow):
        return kernel
    major = str(read("gpu.capability")).partition(".")[0]
    is_newer = major.isdecimal() and int(major) >= 10
    if kernel == "flashinfer":
        return "flashinfer-pool" if is_newer or is_narrow else kernel
    # Stock's default for these states.
    tokens = read("chunked_prefill_size") or 0
    is_pool = major == "10" and dtype == "bfloat16" and 1 <= tokens <= 8192
    return "flashinfer-pool" if is_pool else kernel


def _replicated_drafts(read: Read) -> bool:
    """Whether several ranks run the same draft model."""
    sizes = map(read, ("dp_size", "attn_dp_size", "dwdp_size"))
    several = any(isinstance(size, int) and size > 1 for size in sizes)
    return several and read("speculative_algorithm") not in NOTHING


RESOLVED: dict[str, Callable[[Read], Any]] = {
    **{f"attention.{phase}": partial(_attention, phase) for phase in _BACKENDS},
    "attention.is_split": lambda read: _attention("prefill", read) != _attention("decode", read),
    "attention.ranks": _attention_ranks,
    "graphs.prefill": _prefill_graphs,
    "gdn.prefill": _delta_kernel,
    "drafts.replicated": _replicated_drafts,
}
"""What several arguments resolve to, by the rules of the release's own code."""
