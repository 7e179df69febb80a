"""``report``: one file for an issue, with nothing private in it. It sends nothing."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from ... import __version__
from ...bench import report as bench_report
from ...judge.source import TreeError
from ...model.errors import OperatorError
from ...seen import records
from .. import last_bench
from ..redact import Redaction, flags, role
from . import judged, selected, tree_at
from .listing import verdict_data

PARSER: dict[str, Any] = {
    "description": "Writes versions, verdicts, states, server flags and the last bench to one "
    "file, and prints it. Paths, hosts, tokens and model names are removed. Nothing is sent."
}
_DISTRIBUTIONS = (
    *("sglang", "sglang-kernel", "sgl-kernel", "torch", "triton", "flashinfer-python"),
    *("flashinfer-cubin", "mlx", "mlx-lm", "transformers", "numpy", "wrapt", "prometheus-client"),
)


class ReportError(OperatorError, OSError):
    """The report can't be written to the given place."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where the file goes."""
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("sglang-perf-patches-report.json"),
        metavar="FILE",
        help="- for stdout alone (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the file and print what it holds."""
    text = json.dumps(_data(), indent=1)
    print(text, flush=True)
    if str(args.output) == "-":
        return 0
    try:
        args.output.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{args.output} can't be written: {error.strerror}") from error
    print(
        f"\nThis is what {args.output} holds. Read it before you send it anywhere.",
        file=sys.stderr,
    )
    return 0


def _data() -> dict[str, Any]:
    """All of the report, redacted."""
    redaction = Redaction.of_this_machine()
    chosen = selected()
    content: dict[str, Any] = {
        "made": datetime.now(timezone.utc).isoformat(" ", "minutes"),
        "versions": {"sglang-perf-patches": __version__, **_versions()},
        "machine": {k: v for k, v in bench_report.machine().items() if k != "measured"},
        "selection": chosen.text,
    }
    try:
        tree = tree_at()
        content["sglang"] = tree.version
        content["verdicts"] = [
            {key: data[key] for key in ("id", "selected", "verdict", "reason")}
            for data in (verdict_data(chosen, one) for one in judged(tree))
        ]
    except TreeError as error:
        content["sglang"], content["verdicts"] = str(error), []
    content["processes"] = [
        {
            **{key: value for key, value in data.items() if key != "started"},
            "role": role(data["role"]),
            "flags": flags(data["pid"]),
        }
        for data in records.read_all()
    ]
    content["last_bench"] = _last_bench()
    whole: dict[str, Any] = redaction.of(content)
    return whole


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "system": platform.platform()}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _last_bench() -> Any:
    text = last_bench.read()
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None
