"""``report``: one file for an issue, with nothing private in it. It sends nothing.

What is gathered here is private; `published` lets through what may be shown.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from ... import __version__
from ...bench import report as bench_report
from ...judge.source import TreeError
from ...model.errors import OperatorError
from ...seen import procfs, records
from .. import last_bench, render
from . import judged, selected, tree_at
from .listing import verdict_data

PARSER: dict[str, Any] = {
    "description": "Writes versions, verdicts, states, server flags and the last bench to one "
    "file, and says what is in it. It holds numbers, versions and known names; any other text is "
    "replaced by hidden or other. Nothing is sent."
}


_SAID_FIRST = ("sglang", "sglang-perf-patches", "python")

_NEXT = (
    "Nothing was sent. Read it, then attach it to your issue, with the server's command, what you "
    "expected and what came, and the log line in which sglang-perf-patches says what is live."
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
    """Write the file and say what it holds; print it whole for ``--output -``."""
    data = _data()
    text = json.dumps(data, indent=1)
    if str(args.output) == "-":
        print(text, flush=True)
        return 0
    try:
        args.output.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{args.output} can't be written: {error.strerror}") from error
    print(f"{args.output} holds, and nothing else:\n")
    print(render.table([*map(list, _contents(data))]))
    print(f"\n{render.filled(_NEXT)}")
    return 0


def _contents(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What there is in a report, a line each."""
    versions = {"sglang": data["sglang"] or "none", **data["versions"]}
    others = [f"{name} {value}" for name, value in versions.items() if name not in _SAID_FIRST]
    yield "versions", ", ".join([f"{name} {versions[name]}" for name in _SAID_FIRST] + others)
    yield "machine", ", ".join(f"{name} {value}" for name, value in data["machine"].items())
    words = Counter(verdict["verdict"] for verdict in data["verdicts"])
    counts = ", ".join(f"{count} {word}" for word, count in words.items())
    yield "verdicts", f"{counts or 'none, without sglang'}; of {data['selection']}"
    live = {
        patch["id"]
        for each in data["processes"]
        for patch in each["patches"]
        if "live" in patch["state"]
    }
    yield "processes", f"{len(data['processes'])}, live patches: {len(live)}"
    last = data["last_bench"]
    yield "last bench", f"with sglang {last.get('sglang')}" if last else "none"


def _data() -> dict[str, Any]:
    """All that a report may show."""
    from .. import published  # reads every patch's declaration

    gathered = _gathered(published.DISTRIBUTIONS)
    shown: dict[str, Any] = published.report(gathered)
    return shown


def _gathered(distributions: Iterable[str]) -> dict[str, Any]:
    """What is known here, as it is."""
    selection = selected()
    content: dict[str, Any] = {
        "made": datetime.now(timezone.utc).isoformat(" ", "minutes"),
        "versions": {"sglang-perf-patches": __version__, **_versions(distributions)},
        "machine": {k: v for k, v in bench_report.machine().items() if k != "measured"},
        "selection": selection.text,
    }
    try:
        tree = tree_at()
        content["sglang"] = tree.version
        content["verdicts"] = [verdict_data(selection, one) for one in judged(tree)]
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
