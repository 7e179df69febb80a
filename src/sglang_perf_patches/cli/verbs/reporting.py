"""``report``: one file for an issue, with nothing private in it. It sends nothing.

Each field is a number, or a name from sglang's code or ours. Sentences are left out; of a reason
only the public names are kept. The result of `bench server` can be shared as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

from ... import __version__
from ...bench_server import machine, public, secrets
from ...compat.source import TreeError
from ...model.state import State
from ...telemetry import procfs, records
from .. import render
from . import judged, selected, tree_at

PARSER: dict[str, Any] = {
    "description": "Writes versions, verdicts, states and server flags to one file, and says what "
    "is in it. It holds numbers, versions and known names; any other text is left out. Nothing is "
    "sent."
}


_DISTRIBUTIONS = (
    *("sglang-kernel", "sgl-kernel", "torch", "triton", "flashinfer-python", "flashinfer-cubin"),
    *("mlx", "mlx-lm", "transformers", "numpy", "wrapt", "prometheus-client"),
)
"""Packages whose versions are in a report, next to those of sglang, Python and this project."""

_SYSTEMS = ("Linux", "Darwin", "Windows")
_KINDS = ("x86_64", "aarch64", "arm64", "AMD64", "ppc64le", "s390x", "riscv64")
_GPU = re.compile(r"(\d{1,2}\.\d), (\d{1,7})", re.ASCII)

_NEXT = (
    "Nothing was sent. Read it, then attach it to your issue, with the server's command, what you "
    "expected and what came, and the log line in which sglang-perf-patches says what is live."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the option for the file."""
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("sglang-perf-patches-report.json"),
        metavar="FILE",
        help="where to write it; - prints it (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the file and print what it contains; ``--output -`` prints the file itself."""
    data = _data()
    text = json.dumps(data, indent=1)
    if str(args.output) == "-":
        print(text, flush=True)
        return 0
    args.output.write_text(text + "\n", encoding="utf-8")
    print(f"{args.output} holds, and nothing else:\n")
    print(render.table([*map(list, _contents(data))]))
    print(f"\n{render.filled(_NEXT)}")
    return 0


def _contents(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A line for each part of a report."""
    versions = {"sglang": data["sglang"] or "none", **data["versions"]}
    yield "versions", ", ".join(f"{name} {value}" for name, value in versions.items())
    gpus = [f"GPU {each['capability']} with {each['MiB']} MiB" for each in data["gpus"]]
    yield "machine", ", ".join([data["system"], f"cores {data['cores']}", *gpus])
    words = Counter(verdict["verdict"] for verdict in data["verdicts"])
    counts = ", ".join(f"{count} {word}" for word, count in words.items())
    chosen = f"with SGLANG_PERF_PATCHES={data['selection']}"
    yield "verdicts", f"{counts or 'none, without sglang'}, {chosen}"
    live = {
        patch["id"]
        for each in data["processes"]
        for patch in each["patches"]
        if patch["state"] == "live"
    }
    yield "processes", f"{len(data['processes'])}, live patches: {len(live)}"


def _data() -> dict[str, Any]:
    """The report."""
    selection = selected()
    data: dict[str, Any] = {
        "made": datetime.now(timezone.utc).isoformat(" ", "minutes"),
        "versions": {"sglang-perf-patches": __version__, **_versions()},
        "system": _system(),
        "cores": os.cpu_count(),
        "gpus": [
            {"capability": found[1], "MiB": int(found[2])}
            for line in machine.smi("compute_cap,memory.total")
            if (found := _GPU.fullmatch(line))
        ],
        "selection": public.selection(selection.text),
        "sglang": None,
        "verdicts": [],
        "processes": [
            process(each, procfs.command(each["pid"])) for each in records.read_all(render.warn)
        ],
    }
    with contextlib.suppress(TreeError):
        tree = tree_at()
        data["sglang"] = public.version(tree.version)
        data["verdicts"] = [
            {
                "id": one.patch.id,
                "verdict": one.word,
                "release": one.release or one.nearest,  # of this code, or of code like it
                "differs": list(one.unknown),
                "selected": one.patch.id in selection.ids,
            }
            for one in judged(tree)
        ]
    return data


def process(record: Mapping[str, Any], command: list[str]) -> dict[str, Any]:
    """The part of a process's record (see `telemetry.records`) and command that may be shown."""
    return {
        "pid": record["pid"],
        "server": record["server"],
        "role": public.role(record["role"]),
        "sglang": public.version(record["sglang"]),
        "selection": public.selection(record.get("selection", "")),
        "command": secrets.shown(command, with_model=False),
        "patches": [
            {
                "id": each["id"],
                "state": each["state"] if each["state"] in get_args(State) else public.OTHER,
                "ran": bool(each["ran"]),
                "names": public.named(each["reason"]),
            }
            for each in record["patches"]
            if each["id"] in public.names()
        ],
    }


def _versions() -> dict[str, str]:
    versions = {"python": public.version(platform.python_version())}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = public.version(metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    return versions


def _system() -> str:
    """``Linux 6.1.0 x86_64 2.36``: system, kernel version, architecture, C library version."""
    kernel = re.match(r"\d+\.\d+(\.\d+)?", platform.release())
    parts = (platform.system(), kernel[0] if kernel else "", platform.machine())
    words = filter(None, (*parts, platform.libc_ver()[1]))
    return " ".join(word if word in _SYSTEMS + _KINDS else public.version(word) for word in words)
