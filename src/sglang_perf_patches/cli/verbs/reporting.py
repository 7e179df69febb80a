"""``report``: one file for an issue, with nothing private in it. It sends nothing.

What is gathered here is private; `published` lets through what may be shown.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from ... import __version__
from ...bench import report as bench_report
from ...judge.source import TreeError
from ...model.errors import OperatorError
from ...seen import procfs, records
from .. import last_bench
from . import judged, selected, tree_at
from .listing import verdict_data

PARSER: dict[str, Any] = {
    "description": "Writes versions, verdicts, states, server flags and the last bench to one "
    "file, and prints it. It holds numbers, versions and known names; any other text is replaced "
    "by hidden or other. Nothing is sent."
}


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
    """All that a report may show."""
    from .. import published  # reads every patch's declaration

    gathered = _gathered(published.DISTRIBUTIONS)
    shown: dict[str, Any] = published.report(gathered)
    return shown


def _gathered(distributions: Iterable[str]) -> dict[str, Any]:
    """What is known here, as it is."""
    chosen = selected()
    content: dict[str, Any] = {
        "made": datetime.now(timezone.utc).isoformat(" ", "minutes"),
        "versions": {"sglang-perf-patches": __version__, **_versions(distributions)},
        "machine": {k: v for k, v in bench_report.machine().items() if k != "measured"},
        "selection": chosen.text,
    }
    try:
        tree = tree_at()
        content["sglang"] = tree.version
        content["verdicts"] = [verdict_data(chosen, one) for one in judged(tree)]
    except TreeError:
        content["sglang"], content["verdicts"] = None, []
    content["processes"] = [
        {**data, "flags": procfs.command(data["pid"])} for data in records.read_all()
    ]
    content["last_bench"] = _last_bench()
    return content


def _versions(distributions: Iterable[str]) -> dict[str, str]:
    kernel = re.match(r"\d+\.\d+(\.\d+)?", platform.release())
    library = platform.libc_ver()[1]
    system = [platform.system(), kernel[0] if kernel else "", platform.machine(), library]
    versions = {"python": platform.python_version(), "system": " ".join(filter(None, system))}
    for name in distributions:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _last_bench() -> Any:
    text = last_bench.read()
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
