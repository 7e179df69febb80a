"""A few flags, declared in each of the ways in which releases declare theirs."""

from __future__ import annotations

from pathlib import Path

from sglang_perf_patches.bench_server import flags
from sglang_perf_patches.compat.source import Tree

SOURCE = """
BACKENDS = ["triton", "fa3"]
parser.add_argument("--tp-size", "--tensor-parallel-size", type=int, default=1)
parser.add_argument("--attention-backend", type=str, choices=BACKENDS)
parser.add_argument("--trust-remote-code", action="store_true")
parser.add_argument("--host", type=str, default="auto")
parser.add_argument("--api-key", type=str)
parser.add_argument("--lora-paths", type=str, nargs="*")
parser.add_argument("--extra-headers", type=dict)


class Arguments:
    admin_api_key: A[Optional[str], "A key."] = None
    max_total_tokens: A[Optional[int], "A number."] = None
    mem_fraction_static: A[Optional[float], Arg(help="A part.")] = None
    dtype: A[str, Arg(choices=["auto", "half", "bfloat16"])] = "auto"
    kind: A[Literal["plain", "odd"], "A kind."] = "plain"
    cuda_graph_bs: A[Optional[List[int]], Arg(aliases=["--graph-sizes"])] = None
    random_seed: A[Optional[int], "A seed."] = None
    skip_tokenizer_init: A[bool, "A switch."] = False
    json_model_override_args: A[str, "JSON."] = "{}"
    served_model_name: A[Optional[str], "A name."] = None
    speculative_algorithm: A[Optional[str], Arg(type_parser=upper)] = None
    speculative_eagle_topk: A[Optional[int], "A number."] = None
    disaggregation_mode: A[str, "A mode."] = "null"
    not_a_flag: int = 3
"""
SERVING = """
parser.add_argument("--seed", type=int)
parser.add_argument("--num-prompts", type=int)
parser.add_argument("--extra-request-body", type=str)
parser.add_argument("--served-model-name", type=int)
"""


def of(folder: Path) -> flags.Flags:
    """Those flags, from a tree that is written into a folder."""
    (folder / "srt").mkdir(parents=True)
    (folder / "srt" / "server_args.py").write_text(SOURCE)
    (folder / "bench_serving.py").write_text(SERVING)
    return flags.of(Tree(folder))
