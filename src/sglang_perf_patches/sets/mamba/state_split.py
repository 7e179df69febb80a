"""How a hybrid model's memory is split between slots for states and KV, and what would fit.

A running request of such a model holds slots of a fixed size for its states, however long it is,
and KV that grows with its length. Stock gives the slots a fixed share of the memory
(``--mamba-full-memory-ratio``), and lets as many requests run as have their slots. This computes
the share from the requests that are to run and from their lengths instead; ``doctor --model`` shows
both. There is no patch: ``--max-mamba-cache-size`` with the right number does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STOCK_RATIO = 0.9
"""Memory of states to memory of KV, where an operator gives no other."""

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_CONV_BYTES = 2


@dataclass(frozen=True)
class Cells:
    """What a model keeps on one GPU, in bytes over all its layers.

    Attributes:
        state: of one slot: the state after some token.
        token: KV of one token.
    """

    state: int
    token: int


@dataclass(frozen=True)
class Split:
    """Memory divided in two.

    Attributes:
        slots: for states, without the one that pads a batch.
        tokens: of KV.
        in_flight: requests that run at once.
    """

    slots: int
    tokens: int
    in_flight: int


@dataclass(frozen=True)
class Load:
    """What a server is to hold.

    Attributes:
        requests: most that run at once.
        context: tokens of one, prompt and reply, on average.
    """

    requests: int
    context: int


def stock(
    cells: Cells,
    load: Load,
    *,
    available: int,
    slots_each: int,
    ratio: float = STOCK_RATIO,
    pads: bool = True,
) -> Split:
    """What stock makes of memory.

    Args:
        cells: of the model.
        load: what the server is to hold.
        available: bytes for states and KV.
        slots_each: slots that a request reserves.
        ratio: memory of states to memory of KV.
        pads: whether the release counts the slot that pads a batch; up to 0.5.16 none does.
    """
    slots = int(available * ratio / (1 + ratio) // cells.state) - pads
    return _split(cells, load, available, slots, slots_each)


def stock_without_cache(cells: Cells, load: Load, *, available: int) -> Split:
    """The same without the radix cache: a slot for each request that may run, whatever fits."""
    return _split(cells, load, available, load.requests, 1)


def fitted(cells: Cells, load: Load, *, available: int, slots_each: int) -> Split:
    """Slots for the requests that fit with their KV, at most those that are asked for.

    What they leave is for cached prefixes of the same length, each with KV and one state.
    """
    kv = load.context * cells.token
    spare = available - cells.state
    running = max(0, min(load.requests, spare // (slots_each * cells.state + kv)))
    spare -= running * (slots_each * cells.state + kv)
    cached = max(0, spare // (cells.state + kv))
    return _split(cells, load, available, running * slots_each + cached, slots_each)


def cells_of(
    model: Mapping[str, Any], *, tensor_parallel: int = 1, value_bytes: int = 2
) -> Cells | None:
    """What a model keeps; None for one without states, or with states of an unknown kind.

    Args:
        model: the model's ``config.json``; of a multimodal model the text part is taken.
        tensor_parallel: over how many GPUs heads are spread.
        value_bytes: bytes of one value of KV: 2 for bfloat16, 1 for fp8.

    Raises:
        KeyError: something that the sizes follow from is missing.
        ValueError: the states are of an unknown type.
    """
    text: Mapping[str, Any] = model.get("text_config") or model.get("llm_config") or model
    kind = str(text.get("model_type", ""))
    for prefix, make in _KINDS.items():
        if kind.startswith(prefix):
            return make(text, tensor_parallel, value_bytes)
    return None


def _split(cells: Cells, load: Load, available: int, slots: int, slots_each: int) -> Split:
    tokens = max(0, (available - (slots + 1) * cells.state) // cells.token)
    in_flight = min(load.requests, slots // slots_each, tokens // load.context)
    return Split(slots, tokens, max(0, in_flight))


def _gated_delta_net(text: Mapping[str, Any], ranks: int, value_bytes: int) -> Cells:
    """Qwen3-Next and Qwen3.5."""
    layers = text["num_hidden_layers"]
    kinds = text.get("layer_types")
    if kinds:
        full = sum(kind == "full_attention" for kind in kinds)
    else:
        full = layers // text.get("full_attention_interval", 4)
    state = _state(
        text,
        ranks,
        heads=text["linear_num_value_heads"],
        width=text["linear_value_head_dim"],
        groups=text["linear_num_key_heads"],
        depth=text["linear_key_head_dim"],
        kernel=text["linear_conv_kernel_dim"],
    )
    return Cells((layers - full) * state, full * _kv(text, ranks) * value_bytes)


def _falcon(text: Mapping[str, Any], ranks: int, value_bytes: int) -> Cells:
    """Falcon-H1: each layer has both."""
    inner = text.get("mamba_d_ssm") or text["mamba_expand"] * text["hidden_size"]
    heads = text["mamba_n_heads"]
    state = _state(
        text,
        ranks,
        heads=heads,
        width=inner // heads,
        groups=text["mamba_n_groups"],
        depth=text["mamba_d_state"],
        kernel=text["mamba_d_conv"],
    )
    layers = text["num_hidden_layers"]
    return Cells(layers * state, layers * _kv(text, ranks) * value_bytes)


def _nemotron(text: Mapping[str, Any], ranks: int, value_bytes: int) -> Cells:
    """Nemotron-H: a letter or a word names each layer's kind."""
    kinds = text.get("layers_block_type") or text["hybrid_override_pattern"]
    state = _state(
        text,
        ranks,
        heads=text["mamba_num_heads"],
        width=text["mamba_head_dim"],
        groups=text["n_groups"],
        depth=text["ssm_state_size"],
        kernel=text["conv_kernel"],
    )
    full = sum(kind in ("*", "attention") for kind in kinds)
    states = sum(kind in ("M", "mamba") for kind in kinds)
    return Cells(states * state, full * _kv(text, ranks) * value_bytes)


def _kimi(text: Mapping[str, Any], ranks: int, value_bytes: int) -> Cells:
    """Kimi Linear: its KV is latent, and not spread over GPUs."""
    linear = text["linear_attn_config"]
    heads, width = linear["num_heads"], linear["head_dim"]
    values = 3 * heads * width // ranks * (linear["short_conv_kernel_size"] - 1)
    state = values * _CONV_BYTES + heads // ranks * width * width * _BYTES["float32"]
    latent = text["kv_lora_rank"] + text["qk_rope_head_dim"]
    full = text["num_hidden_layers"] - len(linear["kda_layers"])
    return Cells(len(linear["kda_layers"]) * state, full * latent * value_bytes)


_KINDS = {
    "qwen3_next": _gated_delta_net,
    "qwen3_5": _gated_delta_net,
    "falcon_h1": _falcon,
    "nemotron_h": _nemotron,
    "kimi_linear": _kimi,
}
"""How a configuration's ``model_type`` begins, and who reads it."""


def _state(
    text: Mapping[str, Any],
    ranks: int,
    *,
    heads: int,
    width: int,
    groups: int,
    depth: int,
    kernel: int,
) -> int:
    """Bytes of one layer's state on one GPU: of the recurrence, and of the convolution before it.

    Groups are repeated where they can't be spread evenly.
    """
    spread = groups if groups % ranks == 0 else ranks
    convolved = (heads * width + 2 * spread * depth) // ranks * (kernel - 1)
    dtype = text.get("mamba_ssm_dtype") or "float32"
    if dtype not in _BYTES:
        raise ValueError(f"its states are of type {dtype}")
    return convolved * _CONV_BYTES + heads // ranks * width * depth * _BYTES[dtype]


def _kv(text: Mapping[str, Any], ranks: int) -> int:
    """Values of one token's KV in one layer on one GPU."""
    head = text.get("head_dim") or text.get("attention_head_dim")
    head = head or text["hidden_size"] // text["num_attention_heads"]
    return 2 * int(head) * max(1, int(text["num_key_value_heads"]) // ranks)
