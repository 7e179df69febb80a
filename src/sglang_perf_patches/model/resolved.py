"""What several arguments of a server resolve to, by the rules of the release's own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .feature import MISSING, NOTHING

Read = Callable[[str], Any]
"""See `feature.Server.read`."""


def resolved(name: str, read: Read) -> Any:
    """One of `RESOLVED`, or ``attention.…`` (see `_attention`); `MISSING` if it is neither.

    It raises LookupError if the release chooses it later.
    """
    first, _, rest = name.partition(".")
    if first == "attention":
        return _attention(rest, read)
    return RESOLVED[name](read) if name in RESOLVED else MISSING


def _attention(phase: str, read: Read) -> Any:
    """The attention backend of ``prefill``, ``decode`` or ``draft``; or ``is_split``.

    Or ``ranks``: how many compute the attention of a request.
    """
    if phase == "ranks":
        parts = read("dp_size") if read("enable_dp_attention") else 1
        newer = read("attn_dp_size")  # newer releases resolve both to this one
        return read("tp_size") // (parts if newer is MISSING else max(parts, newer))
    if phase == "is_split":
        return _attention("prefill", read) != _attention("decode", read)
    names = ("speculative_draft_attention_backend",) if phase == "draft" else ()
    own = "prefill" if phase == "prefill" else "decode"
    for name in (*names, f"{own}_attention_backend", "attention_backend"):
        backend = read(name)
        if backend is not MISSING and backend:
            return backend
    raise LookupError(phase)


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
    "graphs.prefill": _prefill_graphs,
    "gdn.prefill": _delta_kernel,
    "drafts.replicated": _replicated_drafts,
}
