"""What the plugin costs a process at its start: ``python3 -m tests.benchmarks.start``.

Each case is a fresh process. The cases take turns, with the cache of judged sources warm unless the
name says cold. The command prints a Markdown table of CPU time (user and system), elapsed time and
peak memory. Each is the median with the range of the middle half, and how far it is above its base.

It needs a released sglang, which it fetches at the first use, and a Python with wrapt. It loads
neither torch nor sglang, because their imports would hide the differences. But a server's processes
load more of the standard library than a bare one does, before they call the plugin: sglang's own
loader of plugins imports `importlib.metadata`, and every one of its servers `asyncio`. These two
are most of what importing wrapt costs. So a bare process and one with these two are measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sglang_perf_patches import bootstrap
from sglang_perf_patches.compat import downloads
from sglang_perf_patches.model import releases
from tests.maintain import ROOT

LOAD = "from sglang_perf_patches import plugin; plugin.load()"
NO_PLACE = "import tempfile; tempfile.tempdir = '/dev/null'; "
"""First in a process: no cache can be kept in the temporary folder."""
PEAK = "; print(next(line.split()[1] for line in open('/proc/self/status') if 'VmHWM' in line))"
"""Last in a process: what its own pages came to. Its usage also counts what its parent had."""
IN_A_SERVER = "import asyncio, importlib.metadata; "
MODULES = (
    f"{LOAD}; import sys; "
    "print(*(name for name in sys.modules if name.partition('.')[0] in sys.stdlib_module_names "
    "and not name.startswith(('__', '_frozen', 'encodings', 'importlib._b', 'os.path'))))"
)

Taken = tuple[float, float, float]
"""CPU milliseconds, elapsed milliseconds and peak MiB of a process."""
UNITS = ("ms of CPU", "ms", "MiB")


@dataclass
class Case:
    """One way to start a process.

    Attributes:
        name: what it is.
        words: what Python is given.
        base: the name of the case that it is compared with, "" for none.
        limits: at most so much above the base, or in all where there is none; None for no limit.
        settings: variables of its environment.
        runs: what each run took.
    """

    name: str
    words: Sequence[str]
    base: str = ""
    limits: tuple[float | None, float | None, float | None] = (None, None, None)
    settings: dict[str, str] = field(default_factory=dict)
    runs: list[Taken] = field(default_factory=list)


def cases(release: str, cold: str) -> list[Case]:
    """What is measured on a release; at `cold` no cache can be kept."""
    search = os.pathsep.join([str(downloads.tree(release)), str(ROOT / "src")])
    below_run = os.pathsep.join([os.fspath(bootstrap.FOLDER), search])
    path = {"PYTHONPATH": search}

    def chosen(text: str) -> dict[str, str]:
        return {**path, "SGLANG_PERF_PATCHES": text}

    standard = "the standard modules of `none`"
    _, imported = process(("-c", MODULES), chosen("none"))
    imports = ("-c", f"import {', '.join(imported.split())}{PEAK}")
    load = ("-c", LOAD + PEAK)
    cold_load = ("-c", NO_PLACE + LOAD + PEAK)
    served = ("-c", IN_A_SERVER + LOAD + PEAK)
    listing = ("-m", "sglang_perf_patches", "list")
    cold_listing = ("-c", f"{NO_PLACE}from sglang_perf_patches.cli import main; main(['list'])")
    uncached = {"XDG_CACHE_HOME": cold}
    return [
        Case("Python alone", ("-c", "pass" + PEAK), settings=path),
        Case(standard, imports, settings=path),
        Case("`none`", load, standard, (5, None, None), chosen("none")),
        Case("`mlx`", load, "`none`", settings=chosen("mlx")),
        Case("`all`", load, "`none`", (180, None, 20), chosen("all")),
        Case("`none`, as in a server", served, settings=chosen("none")),
        Case(
            "`all`, as in a server",
            served,
            "`none`, as in a server",
            (150, None, 15),
            chosen("all"),
        ),
        Case("`all`, cold", cold_load, "`none`", (500, None, None), chosen("all") | uncached),
        Case("`list`", listing, "", (250, None, None), path),
        Case("`list`, cold", cold_listing, settings=path | uncached),
        Case(
            "Python under `run`, without sglang",
            ("-c", "pass" + PEAK),
            "Python alone",
            (10, None, None),
            {"PYTHONPATH": below_run},
        ),
    ]


def process(words: Sequence[str], settings: dict[str, str]) -> tuple[Taken, str]:
    """What a process took, and what it printed.

    Raises:
        RuntimeError: it ended with another code than 0.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG", "PYTHON"))}
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *words], env=kept | settings, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout
        printed = started.stdout.read()
        _, status, used = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
    elapsed = time.perf_counter() - began
    if started.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {started.returncode}")
    cpu = used.ru_utime + used.ru_stime
    peak = int(printed.split()[-1]) if words[-1].endswith(PEAK) else used.ru_maxrss
    return (1000 * cpu, 1000 * elapsed, peak / 1024), printed


def measure(chosen: Sequence[Case], turns: int) -> None:
    """Run every case once to warm up, then in turns, alternately in order and in reverse."""
    for turn in range(turns + 1):
        for case in chosen if turn % 2 else reversed(chosen):
            taken, _ = process(case.words, case.settings)
            if turn:
                case.runs.append(taken)


def table(chosen: Sequence[Case]) -> tuple[str, list[str]]:
    """The table, and a line for each limit that is exceeded."""
    lines = ["| process | CPU, ms | elapsed, ms | peak, MiB | above its base |"]
    lines.append("| --- |" + " ---: |" * 3 + " --- |")
    by_name = {case.name: case for case in chosen}
    missed = []
    for case in chosen:
        base = by_name.get(case.base)
        rows = []
        for column, (limit, unit) in enumerate(zip(case.limits, UNITS, strict=True)):
            more = statistics.median(run[column] for run in case.runs)
            if base:
                more -= statistics.median(run[column] for run in base.runs)
            if limit is not None:
                rows.append(f"{more:.1f} {unit} (limit {limit:g})")
                if more > limit:
                    missed.append(f"{case.name}: {more:.1f} {unit}, limit {limit:g}")
            elif base and column != 1:
                rows.append(f"{more:.1f} {unit}")
        cells = [case.name, *(_spread(run[column] for run in case.runs) for column in range(3))]
        lines.append(f"| {' | '.join([*cells, ', '.join(rows)])} |")
    return "\n".join(lines), missed


def _spread(values: Iterable[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.1f} ({low:.1f} … {high:.1f})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.benchmarks.start")
    parser.add_argument("--release", default=releases.KNOWN[-1], help="of sglang")
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args(arguments)
    print(
        f"sglang {options.release}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{options.turns} turns, load {os.getloadavg()[0]:.1f}\n"
    )
    with tempfile.NamedTemporaryFile() as file:  # a file is no folder: no cache can be kept there
        chosen = cases(options.release, file.name)
        measure(chosen, options.turns)
    text, missed = table(chosen)
    print(text)
    for line in missed:
        print(f"\nnot kept: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
