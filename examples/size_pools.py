"""Sizes the memory pools of a model's server by stock's own options.

    python3 examples/size_pools.py DIR --kv-gib 34 --max-running-requests 256 --context 4096

DIR has the model's config.json. For a model with sliding windows it prints the ratio of both pools
that fits most tokens, which `swa.pool-ratio` applies. For a hybrid model (Qwen3-Next, Qwen3.5,
Nemotron-H, Kimi Linear, Falcon-H1) it prints how a release splits memory between states and KV, and
what would fit; with ``--hicache-ratio`` or ``--hicache-size`` also how `mamba.host-states` would
divide the host. It reads the release's source, and needs this package but no GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_perf_patches.cli import render
from sglang_perf_patches.cli.verbs import add_tree, tree_at
from sglang_perf_patches.compat.source import Tree
from sglang_perf_patches.model.errors import OperatorError
from sglang_perf_patches.sets.mamba import host_states
from sglang_perf_patches.sets.mamba.host_states import PATCH, VARIABLE, Cells, Pools
from sglang_perf_patches.sets.swa import pool_ratio

STATES_RATIO = 0.9
"""Stock's ratio of the memory of states to that of KV (``--mamba-full-memory-ratio``)."""

EVICTION_STEPS = 128
"""Steps between two evictions, by default (``SGLANG_SWA_EVICTION_INTERVAL``)."""


@dataclass(frozen=True)
class Server:
    """The options, by the names of their flags; the cache is bfloat16 by default."""

    kv_gib: float
    max_running_requests: int
    context: int = 0
    hicache_size: float = 0
    hicache_ratio: float = 0
    page_size: int = 1
    tp_size: int = 1
    chunked_prefill_size: int = 8192
    kv_cache_bytes: int = 2
    disable_radix_cache: bool = False

    @property
    def available(self) -> int:
        """`kv_gib` in bytes."""
        return int(self.kv_gib * 2**30)


def main() -> int:
    """Print the sizes; exit code 2 if there are none."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, metavar="DIR", help="a folder with config.json")
    parser.add_argument("--kv-gib", type=float, required=True, help="for KV and states, on a GPU")
    parser.add_argument("--max-running-requests", type=int, required=True)
    parser.add_argument("--context", type=int, default=0, help="average tokens of a request")
    parser.add_argument("--hicache-size", type=float, default=0, help="in GB, for one GPU")
    parser.add_argument("--hicache-ratio", type=float, default=0)
    for name, default in (("page", 1), ("tp", 1), ("chunked-prefill", 8192)):
        parser.add_argument(f"--{name}-size", type=int, default=default)
    parser.add_argument("--kv-cache-bytes", type=int, default=2, help="bytes per value")
    parser.add_argument("--disable-radix-cache", action="store_true")
    add_tree(parser)
    options = vars(parser.parse_args())
    model, path, version = (options.pop(n) for n in ("model", "sglang_path", "sglang_version"))
    server = Server(**options)
    try:
        config = json.loads((model / "config.json").read_text("utf-8"))
        cells = cells_of(config, server.tp_size, server.kv_cache_bytes)
        if cells is None:
            print(windows(config, server))
            return 0
        if not server.context:
            parser.error("a hybrid model needs --context")
        tree = tree_at(path, version)
        lines = states(tree, config["architectures"][0], cells, server)
        rows = [["SLOTS A REQUEST", "STATE SLOTS", "KV TOKENS", "IN FLIGHT", "ADD TO THE COMMAND"]]
        for each in lines:
            numbers = (each.slots_each, each.pools.states, each.pools.tokens, each.in_flight)
            rows.append([*(f"{number:,}" for number in numbers), each.give or "(stock's defaults)"])
        print(render.table(rows))
        if server.hicache_size or server.hicache_ratio:
            print(f"\n{host(tree, cells, lines[0].pools, server)}")
    except (OperatorError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        print(f"size_pools: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


# -- sliding windows


def windows(config: Mapping[str, Any], server: Server) -> str:
    """The ``--swa-full-tokens-ratio`` that fits most tokens, in a sentence."""
    text = config.get("text_config") or config
    full, windowed = layer_kinds(text)
    if not (text.get("sliding_window") and full and windowed):
        return "the model has no states, and no pool next to a sliding-window pool"
    found, stock = window_pools(text, server)
    if found is None:
        return f"stock's --swa-full-tokens-ratio {pool_ratio.STOCK_RATIO} fits most"
    return (
        f"--swa-full-tokens-ratio {found.ratio:.3f} would fit {found.full:,} tokens instead of "
        f"{stock:,}, with sliding-window KV for {found.swa:,}"
    )


def window_pools(text: Mapping[str, Any], server: Server) -> tuple[pool_ratio.Pools | None, int]:
    """The pools as `swa.pool-ratio` sizes them, None if as stock; and stock's full tokens."""
    heads = max(1, int(text["num_key_value_heads"]) // server.tp_size)
    head = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    layer = heads * head * 2 * server.kv_cache_bytes
    full_cell, swa_cell = (layers * layer for layers in layer_kinds(text))
    window, page, requests = text["sliding_window"], server.page_size, server.max_running_requests
    needs = pool_ratio.Needs(
        requests=requests,
        # As sglang's compute_swa_request_cap, for a server without speculation.
        running=(window + EVICTION_STEPS + 2 * page) * requests
        + 2 * server.chunked_prefill_size
        + page,
        prefix=window + page,
        page_size=page,
        tails=0 if server.disable_radix_cache else None,
    )
    ratio, cells = pool_ratio.STOCK_RATIO, {"full_cell": full_cell, "swa_cell": swa_cell}
    found = pool_ratio.fit(needs, **cells, ratio=ratio, available=server.available)
    return found, int(server.available / (full_cell + ratio * swa_cell))


def layer_kinds(text: Mapping[str, Any]) -> tuple[int, int]:
    """``(layers with full attention, layers with windows)``."""
    layers = int(text.get("num_hidden_layers", 0))
    if kinds := text.get("layer_types"):
        windowed = sum("sliding" in kind for kind in kinds)
        return layers - windowed, windowed
    if pattern := text.get("sliding_window_pattern"):
        full = sum((n + 1) % pattern == 0 for n in range(layers))
        return full, layers - full
    return layers, 0


# -- states


@dataclass(frozen=True)
class Line:
    """What an operator adds to the command, the slots of a request then, and what fits."""

    give: str
    slots_each: int
    pools: Pools
    in_flight: int


def states(tree: Tree, architecture: str, cells: Cells, server: Server) -> list[Line]:
    """How each way splits the memory of one GPU; stock's defaults are first.

    Raises:
        OperatorError: no request fits.
    """
    choices = ways(tree, architecture)
    if server.disable_radix_cache:
        choices = choices[-1:]
        slots = server.max_running_requests
    else:  # from 0.5.17 on stock counts the slot that pads a batch
        pads = "max_mamba_cache_size + 1)" in source(tree, "mem_cache.kv_cache_configurator")
        slots = stock_slots(cells, server.available) - pads
    lines = [line("", choices[0][1], slots, cells, server)]
    for give, each in choices:
        slots = fitted_slots(cells, server, each)
        best = line(f"{give} --max-mamba-cache-size {slots}".strip(), each, slots, cells, server)
        lines += [best] if best.in_flight else []
    if len(lines) < 2:
        raise OperatorError(f"{server.kv_gib:g} GiB hold no request of {server.context} tokens")
    return lines


def line(give: str, slots_each: int, slots: int, cells: Cells, server: Server) -> Line:
    """What a number of slots leaves for KV, and how many of the requests run at once."""
    tokens = max(0, (server.available - (slots + 1) * cells.state) // cells.token)
    most = min(server.max_running_requests, slots // slots_each, tokens // server.context)
    return Line(give, slots_each, Pools(slots, tokens), max(0, most))


def stock_slots(cells: Cells, available: int) -> int:
    """The slots that stock makes of `available` bytes."""
    return int(available * STATES_RATIO / (1 + STATES_RATIO) // cells.state)


def fitted_slots(cells: Cells, server: Server, slots_each: int) -> int:
    """Slots for as many of the requests as fit with their KV, and for cached prefixes."""
    kv, spare = server.context * cells.token, server.available - cells.state
    running = min(server.max_running_requests, spare // (slots_each * cells.state + kv))
    running = max(0, running)
    spare -= running * (slots_each * cells.state + kv)
    return running * slots_each + max(0, spare // (cells.state + kv))


def ways(tree: Tree, architecture: str) -> list[tuple[str, int]]:
    """Options of a release for a model, each with the slots of a request; its default is first.

    The last has no prefix cache. The costs: with SKIP_DECODE_LOCK the cached state of a running
    request may be evicted. ``extra_buffer_lazy`` is not for disaggregated servers. ``no_buffer``
    has page size 1, no overlap, and caches states only at the end of a prefill.
    """
    files = ("server_args", "arg_groups.fields.exec_", "arg_groups.overrides")
    arguments = "".join(source(tree, name) for name in files)
    listed = re.search(
        r"_MAMBA_EXTRA_BUFFER_ARCHS = frozenset\((.*?)\n\)"
        r"|def _support_mamba_cache_extra_buffer\(self, model_arch: str\):"
        r"\s+if model_arch in \[(.*?)\]",
        arguments,
        re.DOTALL,
    )
    skip = "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"
    lazy = "--mamba-radix-cache-strategy extra_buffer_lazy"
    found = [("", 3)]
    if listed and f'"{architecture}"' in listed[0]:
        has_skip = f"{skip} = EnvBool(False)" in source(tree, "environ")
        has_lazy = '"extra_buffer_lazy"' in arguments
        found = [("", 5)]
        found += [(f"{skip}=1", 4)] if has_skip else []
        found += [(lazy, 4)] if has_lazy else []
        found += [(f"{skip}=1 {lazy}", 3)] if has_skip and has_lazy else []
        plain = "--mamba-radix-cache-strategy no_buffer --disable-overlap-schedule"
        found.append((plain, 3))
    return [*found, ("--disable-radix-cache", 1)]


def source(tree: Tree, name: str) -> str:
    """The source of a module below ``sglang.srt``; "" if the tree has none."""
    path = tree.path(f"sglang.srt.{name}")
    return path.read_text(encoding="utf-8") if path else ""


def host(tree: Tree, cells: Cells, device: Pools, server: Server) -> str:
    """Stock's division of the host's memory, and those of `mamba.host-states`, as a table.

    Raises:
        OperatorError: it is unknown how this release divides it.
    """
    if tree.version not in PATCH.releases:
        raise OperatorError(f"it is unknown how {tree.version} divides the host's memory")
    size, ratio = server.hicache_size, server.hicache_ratio
    stock = host_states.stock_pools(cells, device, ratio, size)
    total = int(size * host_states.GIGABYTE) or stock.bytes(cells)
    # Stock caches a state for each prefill chunk, and one more for a long reply.
    few = -(-server.context // server.chunked_prefill_size)
    rows = [["HOST STATES", "HOST KV TOKENS", "PREFIXES", "WITH LONG REPLIES", "SET"]]
    found: dict[str, Pools | None] = {"(stock)": stock}
    for each in (few, few + 1):
        tokens = max(1, server.context // each)
        give = f"{VARIABLE}={tokens} SGLANG_PERF_PATCHES=all,{PATCH.id}"
        found[give] = host_states.divided(cells, total, device, tokens)
    for give, pools in found.items():
        if pools is not None:
            fit = (prefixes(pools, server.context, each) for each in (few, few + 1))
            rows.append([*(f"{n:,}" for n in (pools.states, pools.tokens, *fit)), give])
    return render.table(rows)


def prefixes(pools: Pools, tokens: int, states: int) -> int:
    """How many prefixes of this many tokens and states fit, each with both."""
    return min(pools.states // states, pools.tokens // tokens)


# -- what a state and a token of a model take

_GATED_DELTA_NET = (
    *("linear_num_value_heads", "linear_value_head_dim"),
    *("linear_num_key_heads", "linear_key_head_dim", "linear_conv_kernel_dim"),
)
_FIELDS = {
    "qwen3_next": _GATED_DELTA_NET,
    "qwen3_5": _GATED_DELTA_NET,
    "falcon_h1": ("mamba_n_heads", "", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"),
    "nemotron_h": (
        *("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"),
    ),
}
"""How a ``model_type`` begins → its fields for a state's heads, their width, groups, depth, and
the convolution's kernel."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def cells_of(config: Mapping[str, Any], ranks: int = 1, value_bytes: int = 2) -> Cells | None:
    """The bytes of a model's states and KV on a GPU; None for a model without states.

    Raises:
        KeyError: a field is missing.
        OperatorError: the states are of an unknown type.
    """
    text = config.get("text_config") or config.get("llm_config") or config
    kind = str(text.get("model_type", ""))
    if kind.startswith("kimi_linear"):  # its KV is latent, and complete on every GPU
        linear = text["linear_attn_config"]
        heads, width = linear["num_heads"] // ranks, linear["head_dim"]
        values = 3 * heads * width * (linear["short_conv_kernel_size"] - 1)
        state, latent = values * 2 + heads * width * width * 4, text["kv_lora_rank"]
        full = text["num_hidden_layers"] - len(linear["kda_layers"])
        token = full * (latent + text["qk_rope_head_dim"]) * value_bytes
        return Cells(len(linear["kda_layers"]) * state, token)
    fields = next((names for prefix, names in _FIELDS.items() if kind.startswith(prefix)), None)
    if fields is None:
        return None
    layers = full = int(text["num_hidden_layers"])
    heads, width, groups, depth, kernel = (text[name] if name else 0 for name in fields)
    if kind.startswith("falcon_h1"):  # each layer has both
        width = (text.get("mamba_d_ssm") or text["mamba_expand"] * text["hidden_size"]) // heads
    elif kind.startswith("nemotron_h"):  # a letter or a word names each layer's kind
        kinds = [*(text.get("layers_block_type") or text["hybrid_override_pattern"])]
        layers = sum(each in ("M", "mamba") for each in kinds)
        full = sum(each in ("*", "attention") for each in kinds)
    else:
        listed = text.get("layer_types")
        full //= text.get("full_attention_interval", 4)
        full = listed.count("full_attention") if listed else full
        layers -= full
    spread = groups if groups % ranks == 0 else ranks  # repeated where they can't be spread evenly
    convolved = (heads * width + 2 * spread * depth) // ranks * (kernel - 1)
    dtype = text.get("mamba_ssm_dtype") or "float32"
    if dtype not in _BYTES:
        raise OperatorError(f"its states are of type {dtype}")
    recurrent = heads // ranks * width * depth * _BYTES[dtype]
    head = text.get("head_dim") or text.get("attention_head_dim")
    head = head or text["hidden_size"] // text["num_attention_heads"]
    values = 2 * int(head) * max(1, int(text["num_key_value_heads"]) // ranks)
    return Cells(layers * (convolved * 2 + recurrent), full * values * value_bytes)


if __name__ == "__main__":
    sys.exit(main())
