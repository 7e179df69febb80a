"""Launch commands that people run, with the flags as sglang 0.5.23 names them.

``commands.txt`` has them, each with where it was found; for a public repository that is the file.
Left out are the flags that 0.5.23 no longer has, and the address and the port. Where a script reads
a value from its environment, the command has the one of the repository's own matrix, in brackets.
"""

from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import NamedTuple

DRAFT = "DRAFT"
"""Stands for the folder of a draft model in a command."""


class Recipe(NamedTuple):
    """A launch command; `gpu` is a key of `cli.ask.gpus.KINDS` or "MLX"; `flags` follow a model."""

    name: str
    model: str
    gpu: str
    source: str
    flags: str


_INFERENCEX = "SemiAnalysisAI/InferenceX: benchmarks/"
_SHORT = {
    "COOKBOOK": "sglang cookbook, ",
    "DYNAMO": "NVIDIA Dynamo, gpt-oss-120b disaggregated, ",
    "BOOK": "sgl-project/sgl-cookbook: ",
    "DOCS": "sgl-project/sgl-cookbook: docs/autoregressive/",
    "SGLANG": "sgl-project/sglang: docs_new/",
    "FIXED": f"{_INFERENCEX}single_node/fixed_seq_len/",
    "SLURM": f"{_INFERENCEX}multi_node/srt-slurm-recipes/sglang/",
    "QWEN": "--reasoning-parser qwen3 --tool-call-parser qwen3_coder",
    "DRAFTS": "--speculative-num-steps 3 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 4 --speculative-algorithm ",
    "PD": "--tp 4 --trust-remote-code --skip-tokenizer-init --disaggregation-transfer-backend nixl",
}


def _read(text: str) -> Iterator[Recipe]:
    """A line has a recipe's name, model, GPU and source; its flags are in indented lines."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    while lines:
        about = lines.pop(0).split(" | ")
        flags = []
        while lines and lines[0].startswith(" "):
            flags.append(lines.pop(0).strip())
        yield Recipe(*about, " ".join(flags))


_COMMANDS = Path(__file__).with_name("commands.txt").read_text("utf-8")
RECIPES = tuple(_read(Template(_COMMANDS).substitute(_SHORT)))
