"""How a hybrid model's memory is split between slots for states and KV, and what would fit.

A running request holds slots of a fixed size for its states, and KV that grows with its length.
Stock gives the slots a fixed share of the memory (``--mamba-full-memory-ratio``), and runs as many
requests as have slots. This module computes the share from the number of requests and their length
instead; ``doctor --model`` shows both. It needs no patch: ``--max-mamba-cache-size`` sets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...model.errors import OperatorError
from ...sets.mamba.host_split import Cells
from .server import Server

STOCK_RATIO = 0.9
"""Default ratio of the memory of states to that of KV (``--mamba-full-memory-ratio``)."""

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_CONV_BYTES = 2


@dataclass(frozen=True)
class Split:
    """Memory divided in two.

    Attributes:
        slots: number of slots for states, without the one that pads a batch.
        tokens: number of tokens that the KV pool holds.
        in_flight: number of requests that run at once.
    """

    slots: int
    tokens: int
    in_flight: int


@dataclass(frozen=True)
class Load:
    """The load that a server must hold.

    Attributes:
        requests: the maximum that runs at once.
        context: average tokens of a request, prompt and reply.
    """

    requests: int
    context: int


def stock(cells: Cells, load: Load, *, available: int, slots_each: int, pads: bool = True) -> Split:
    """How stock divides `available` bytes if a request reserves `slots_each`.

    `pads`: whether the release counts the slot that pads a batch; none does up to 0.5.16.
    """
    slots = int(available * STOCK_RATIO / (1 + STOCK_RATIO) // cells.state) - pads
    return split(cells, load, available, slots, slots_each)


def fitted(cells: Cells, load: Load, *, available: int, slots_each: int) -> Split:
    """Slots for as many of the load's requests as fit with their KV.

    The rest of the memory holds cached prefixes of the same length, each with KV and one state.
    """
    kv = load.context * cells.token
    spare = available - cells.state
    running = max(0, min(load.requests, spare // (slots_each * cells.state + kv)))
    spare -= running * (slots_each * cells.state + kv)
    cached = max(0, spare // (cells.state + kv))
    return split(cells, load, available, running * slots_each + cached, slots_each)


def split(cells: Cells, load: Load, available: int, slots: int, slots_each: int) -> Split:
    """How memory with a number of slots is divided, and how much of the load runs at once."""
    tokens = max(0, (available - (slots + 1) * cells.state) // cells.token)
    in_flight = min(load.requests, slots // slots_each, tokens // load.context)
    return Split(slots, tokens, max(0, in_flight))


def cells_of(model: Mapping[str, Any], server: Server) -> Cells | None:
    """The sizes of a model's states and KV; None for a model without states, or of an unknown kind.

    Args:
        model: the model's ``config.json``; for a multimodal model, its text part is used.
        server: the options.

    Raises:
        KeyError: a field is missing.
        OperatorError: the states are of an unknown type.
    """
    text: Mapping[str, Any] = model.get("text_config") or model.get("llm_config") or model
    kind = str(text.get("model_type", ""))
    ranks, value_bytes = server.tp_size, server.kv_cache_bytes
    if kind.startswith("kimi_linear"):
        return _kimi(text, ranks, value_bytes)
    fields = next((names for prefix, names in _FIELDS.items() if kind.startswith(prefix)), None)
    if fields is None:
        return None
    states, full = _layers(kind, text)
    heads, width, groups, depth, kernel = (text[name] if name else 0 for name in fields)
    if kind.startswith("falcon_h1"):
        width = (text.get("mamba_d_ssm") or text["mamba_expand"] * text["hidden_size"]) // heads
    # Groups are repeated where they can't be spread evenly.
    spread = groups if groups % ranks == 0 else ranks
    convolved = (heads * width + 2 * spread * depth) // ranks * (kernel - 1)
    dtype = text.get("mamba_ssm_dtype") or "float32"
    if dtype not in _BYTES:
        raise OperatorError(f"its states are of type {dtype}")
    recurrent = heads // ranks * width * depth * _BYTES[dtype]
    head = text.get("head_dim") or text.get("attention_head_dim")
    head = head or text["hidden_size"] // text["num_attention_heads"]
    values = 2 * int(head) * max(1, int(text["num_key_value_heads"]) // ranks)
    return Cells(states * (convolved * _CONV_BYTES + recurrent), full * values * value_bytes)


_GATED_DELTA_NET = (
    *("linear_num_value_heads", "linear_value_head_dim"),
    *("linear_num_key_heads", "linear_key_head_dim", "linear_conv_kernel_dim"),
)
_FIELDS = {
    "qwen3_next": _GATED_DELTA_NET,
    "qwen3_5": _GATED_DELTA_NET,
    "falcon_h1": ("mamba_n_heads", "", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"),
    "nemotron_h": (
        "mamba_num_heads",
        "mamba_head_dim",
        "n_groups",
        "ssm_state_size",
        "conv_kernel",
    ),
}
"""How a ``model_type`` begins → its fields for a state's heads, their width, groups, depth, and
the convolution's kernel."""


def _layers(kind: str, text: Mapping[str, Any]) -> tuple[int, int]:
    """``(layers with states, layers with KV)``."""
    if kind.startswith("nemotron_h"):  # a letter or a word names each layer's kind
        kinds = text.get("layers_block_type") or text["hybrid_override_pattern"]
        return (
            sum(each in ("M", "mamba") for each in kinds),
            sum(each in ("*", "attention") for each in kinds),
        )
    layers = int(text["num_hidden_layers"])
    if kind.startswith("falcon_h1"):  # each has both
        return layers, layers
    kinds = text.get("layer_types")
    full = layers // text.get("full_attention_interval", 4)
    full = kinds.count("full_attention") if kinds else full
    return layers - full, full


def _kimi(text: Mapping[str, Any], ranks: int, value_bytes: int) -> Cells:
    """The sizes of Kimi Linear, whose KV is latent and complete on every GPU."""
    linear = text["linear_attn_config"]
    heads, width = linear["num_heads"], linear["head_dim"]
    values = 3 * heads * width // ranks * (linear["short_conv_kernel_size"] - 1)
    state = values * _CONV_BYTES + heads // ranks * width * width * _BYTES["float32"]
    latent = text["kv_lora_rank"] + text["qk_rope_head_dim"]
    full = text["num_hidden_layers"] - len(linear["kda_layers"])
    return Cells(len(linear["kda_layers"]) * state, full * latent * value_bytes)
