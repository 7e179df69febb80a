"""Options of stock sglang and MLX that are off by default and may help like a patch does.

``doctor`` lists those that a tree has. The texts follow from reading the released code. The prefill
graphs and the MLX options were also measured, see ``tests/benchmarks/results/stock.md`` and
``mlx.md``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...compat.source import Tree, TreeError
from .. import machine, render
from . import measured_by, text_of

_ENVIRON = "sglang.srt.environ"
_CACHE_ACTIONS = "sglang.srt.mem_cache.unified_cache.cache_action"
_MLX = "sglang.srt.hardware_backend.mlx.model_runner"
_PREFILL = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner"


@dataclass(frozen=True)
class Switch:
    """A switch that is off by default.

    Attributes:
        name: how an operator turns it on.
        gains: what it does, and for whom.
        costs: what it costs, or where it has no effect.
        module: the module whose source shows that a release has it.
        marker: the text there that shows it, and that it is off by default.
        needs: what a machine must have for it to have an effect (see `machine.has`).
    """

    name: str
    gains: str
    costs: str
    module: str
    marker: str
    needs: tuple[str, ...] = (machine.GPU,)

    @property
    def data(self) -> dict[str, Any]:
        """As a JSON object, with the command that measures it on an operator's own server."""
        measure = measured_by(self.name)
        return {"name": self.name, "gains": self.gains, "costs": self.costs, "measure": measure}


def _off(variable: str, gains: str, costs: str, needs: tuple[str, ...] = (machine.GPU,)) -> Switch:
    marker = f"{variable} = EnvBool(False)"
    return Switch(f"{variable}=1", gains, costs, _ENVIRON, marker, needs)


SWITCHES = (
    _off(
        "SGLANG_OPT_FLASHINFER_DRAFT_HOST_INDPTR",
        "a FlashInfer draft is planned from the host's lengths, without a blocking copy per step",
        "no effect if the draft has a window, or a batch has no lengths on the host",
    ),
    _off(
        "SGLANG_OPT_FLASHINFER_VERIFY_HOST_PLAN",
        "a FlashInfer verify is planned from the host's lengths, without waiting for the GPU",
        "no effect except on EAGLE's verify with topk = 1 in a CUDA graph, with the fa2 kernels",
    ),
    _off(
        "SGLANG_ENABLE_METADATA_GLUE_GRAPH",
        "a replayed decode prepares its attention metadata in one graph launch",
        "experimental; no effect on padded batches, two-batch overlap, LoRA and DFlash",
    ),
    _off(
        "SGLANG_OPT_CUDA_GRAPH_FILL_FAST_PATH",
        "an unpadded batch skips the reset of padding when a graph's inputs are filled",
        "no effect on padded batches",
    ),
    _off(
        "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK",
        "each running request of a hybrid model holds one state slot less, so more can run",
        "the state of a matched prefix may be evicted while its request decodes. No effect without "
        "the unified tree",
        needs=(),
    ),
    Switch(
        "--mamba-max-states-per-path 1",
        "each cached prefix of a hybrid model keeps only its last state, so the same slots hold "
        "more prefixes",
        "the first request that branches off inside a prefix computes the prefix again",
        _CACHE_ACTIONS,
        "class MambaEvictExcessPathStates",
        needs=(),
    ),
    Switch(
        "--cuda-graph-backend-prefill full",
        "a prefill is one graph of a fixed number of requests, not segments between eager layers",
        "experimental: sglang itself advises the breakable backend for production. Values differ: "
        "with DeepSeek-V2-Lite's shape 14 of 39 replies were the default's. There a 130-token "
        "prompt's first token took 0.90 of the default's time on one H200, and 0.78 on two H100. "
        "With Gemma 3 12B's shape it took 1.00 and 0.75, and with gpt-oss-20b's 0.77 on four H100 "
        "and 0.72 on four H200. A model with gated delta nets did not start",
        _PREFILL,
        "Backend.FULL",
    ),
    Switch(
        "MLX_USE_CUDA_GRAPHS=0",
        "MLX for CUDA captures no graph for each new batch shape: 16 clients got 1.2 times the "
        "tokens per second on an H100",
        "a single client got 0.59 to 1.12 times the tokens per second. No effect on Metal",
        _MLX,
        "class MlxModelRunner",
        needs=(machine.GPU, machine.MLX),
    ),
)


def of(tree: Tree, *, is_here: bool = False) -> list[Switch]:
    """The switches that a tree has, without those in files that can't be read.

    Args:
        tree: the tree.
        is_here: whether to leave out those that have no effect on this machine.
    """
    present = []
    for switch in SWITCHES:
        with contextlib.suppress(TreeError):
            if switch.marker in text_of(tree, switch.module):
                present.append(switch)
    return [one for one in present if not is_here or all(map(machine.has, one.needs))]


def text(switches: Sequence[Switch], where: str = "there") -> str:
    """The lines that ``doctor`` prints about switches; "" for none."""
    if not switches:
        return ""
    lines = [f"sglang options {where} that are off, each with its benchmark command and trade-off:"]
    for switch in switches:
        lines.append(f"  {measured_by(switch.name)}")
        lines.append(render.filled(f"gains: {switch.gains}", " " * 6))
        lines.append(render.filled(f"costs: {switch.costs}", " " * 6))
    return "\n".join(lines)
