"""Upstream's own unit tests on a release, once with patches off and once with them on.

``python3 -m tests.maintain.upstream FOLDER RELEASE`` takes a folder of sglang's tests
(``test/registered/unit`` of a checkout; no wheel has them) and runs it on the released sglang with
the transformers that the release names. It prints each test whose outcome differs and how many
patches were live. Tests below a folder ``mlx`` run with MLX on the CPU, the others with
stand-ins for what a CPU lacks, both as a CPU server, where the patches of kernels for GPUs are
gated, and as one of no platform, where they are not; ``--only`` picks one of the three. Each file
has a process of its own, one test at a time; a test that crashes it fails, and the rest goes on.
Both sides run at once. A test that differs runs again, its whole file on one side after the other:
only what differs both times counts as differing.

``--keep`` puts the counts into ``tests/benchmarks/results/upstream.json``, from which `tables`
makes a page. Nothing of the tests comes into the project but the names of those that differ.

Exit codes: 0, no test differs; 1, one does; 2, there are no tests to play; 128 + N: signal N ended
the command, and with it all that it had started.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

from sglang_perf_patches.bench_server import interrupts
from sglang_perf_patches.cli import downloads
from sglang_perf_patches.model import releases

from . import ROOT, pages

sys.path.insert(0, str(ROOT / "tests" / "harness"))

from linux_mlx import environments, processes, tiny_model

PAGE = f"{pages.RESULTS}/upstream.md"
RESULTS = f"{pages.RESULTS}/upstream.json"

TRANSFORMERS = {
    "5.3.0": releases.between("0.5.10", "0.5.10.post1"),
    "5.6.0": releases.between("0.5.11", "0.5.12.post1"),
    "5.8.1": releases.between("0.5.13", "0.5.14"),
    "5.12.1": releases.between("0.5.15", "0.5.18"),
}
"""The transformers that the releases name. Beside others the tests were not tried."""

TEST_S = 120
"""A test that takes longer has failed."""

SILENT_S = TEST_S + 30
"""A file's process that says nothing for longer has crashed: Python can't end its test."""

SIDE_S = 3600
"""A side that takes longer is given up."""

_HARNESS = ROOT / "tests" / "harness"
_SHIMS = _HARNESS / "linux_mlx" / "shims"


class NoTests(Exception):
    """There are no tests to run; the message says why."""


@dataclass(frozen=True)
class Kind:
    """A way to run tests.

    Attributes:
        name: in the results.
        search: folders on PYTHONPATH, next to ours.
        settings: variables.
        options: of pytest.
        model: the variable that names the model of the tests, "" if they need none.
    """

    name: str
    search: tuple[Path, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    model: str = ""


CPU = Kind("CPU", (), {"SGLANG_USE_CPU_ENGINE": "1"}, ("--stand-ins",))
NO_PLATFORM = Kind("no platform", (), {}, ("--stand-ins",))
MLX = Kind(
    "MLX",
    (_SHIMS,),
    # Without the second variable a test demands 12 GB, for the model that it would load.
    {"SGLANG_USE_MLX": "1", "SGLANG_MLX_TEST_MIN_FREE_GB": "1"},
    model="SGLANG_MLX_TEST_MODEL",
)

SIDES = {"off": "none", "on": "all"}
"""A side → the selection of patches."""


@dataclass(frozen=True)
class Side:
    """What became of the tests on one side.

    Attributes:
        tests: test → outcome (see `outcomes.WORST_LAST`).
        live: patch → in how many files it was live after any test.
        ran: patch → in how many files its code ran.
    """

    tests: Mapping[str, str]
    live: Mapping[str, int]
    ran: Mapping[str, int]


@dataclass(frozen=True)
class Found:
    """What the results keep of the tests of one kind on one release.

    Attributes:
        release: which.
        kind: the name of a `Kind`.
        commit: of the checkout that the tests are from, "" if they are from none.
        equal: how many Python files of the release the checkout has, byte for byte.
        files: how many the release has.
        run: tests that were neither skipped nor missing on either side.
        passed: those that passed on both sides.
        failed: those that failed on both sides.
        skipped: tests that both sides skipped.
        unsteady: tests that differed, but not when they ran again.
        differing: test → what became of it, patches off and on.
        live: patch → in how many files it was live.
        ran: patch → in how many files its code ran.
        project: the commit of this project.
        date: when.
    """

    release: str
    kind: str
    commit: str
    equal: int
    files: int
    run: int
    passed: int
    failed: int
    skipped: int
    unsteady: Sequence[str]
    differing: Mapping[str, Sequence[str]]
    live: Mapping[str, int]
    ran: Mapping[str, int]
    project: str
    date: str


def play(folder: Path, release: str, only: str = "") -> list[Found]:
    """Play the tests of a folder on both sides, one line for each kind, or `only` of the one named.

    Raises:
        NoTests: there are none, or none can be collected.
        environments.Failure: the environment can't be made.
    """
    if release not in {each for named in TRANSFORMERS.values() for each in named}:
        raise NoTests(f"it is not known with which transformers to play tests of sglang {release}")
    files = sorted(folder.rglob("test_*.py"))
    if not files:
        raise NoTests(f"{folder} holds no tests: no file is named test_*.py")
    python = environment(release).python
    of_mlx = [file for file in files if "mlx" in file.relative_to(folder.parent).parts]
    outcomes = []
    others = [file for file in files if file not in of_mlx]
    for kind, tests in ((MLX, of_mlx), (CPU, others), (NO_PLATFORM, others)):
        if tests and only in ("", kind.name):
            first = _sides(python, kind, folder, tests, at_once=True)
            differing = _differing(first)
            again = {test.partition("::")[0] for test in differing}
            second = differing
            if again:
                files = [_file(folder, test) for test in again]
                second = _differing(_sides(python, kind, folder, files, at_once=False))
            outcomes.append(_found(release, kind, folder, first, differing, second))
    if not outcomes:
        raise NoTests(f"none of the tests in {folder} run with {only}")
    return outcomes


def environment(release: str) -> environments.Environment:
    """The released sglang with what its tests need on a CPU."""
    own = (_HARNESS / "upstream.txt").read_text(encoding="utf-8").splitlines()
    theirs = next(version for version, named in TRANSFORMERS.items() if release in named)
    pins = [line for line in own if line and not line.startswith("#")]
    pins += [f"sglang=={release}", f"transformers=={theirs}"]
    replaced = {pin.partition("==")[0] for pin in pins}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"upstream-{release}.txt")
        base = (_HARNESS / "cpu.txt").read_text(encoding="utf-8").splitlines()
        pins = [*(line for line in base if line.partition("==")[0] not in replaced), *pins]
        file.write_text("\n".join(pins), encoding="utf-8")
        return environments.environment(file)


def keep(root: Path, found: Sequence[Found]) -> None:
    """Put counts in the place of earlier ones of the same release and kind."""
    new = {(each.release, each.kind): each for each in found}
    kept = {(each.release, each.kind): each for each in _kept(root)} | new
    rows = json.dumps([asdict(each) for each in kept.values()], indent=1)
    (root / RESULTS).write_text(rows + "\n", encoding="utf-8")


def page(root: Path) -> str:
    """The page of the committed counts."""
    rows = [
        "| release | with | release's files in the checkout | run | passed | failing in stock too "
        "| skipped | unsteady | differing | patches live | of them ran |",
        "|" + " --- |" * 11,
    ]
    notes = []
    kept = _kept(root)
    for each in kept:
        rows.append(
            f"| {each.release} | {each.kind} | {each.equal:,} of {each.files:,} | {each.run:,} "
            f"| {each.passed:,} | {each.failed:,} | {each.skipped:,} | {len(each.unsteady)} "
            f"| {len(each.differing)} | {len(each.live)} | {len(each.ran)} |"
        )
        notes.append(
            f"- {each.release}, {each.kind}: tests of upstream's {each.commit[:10]}; this project "
            f"at {each.project[:10]}, {each.date}. Ran in files: {_counted(each.ran)}. Live in "
            f"files: {_counted(each.live)}."
        )
        notes += [
            f"  Differs: `{test}`, off {off}, on {on}."
            for test, (off, on) in sorted(each.differing.items())
        ]
    return "\n".join([_INTRODUCTION, *rows, "", *notes, ""])


_INTRODUCTION = """# Upstream's own unit tests, with patches off and on

`python3 -m tests.maintain.upstream FOLDER RELEASE --keep` ran the tests of
`test/registered/unit` on the released sglang of 2 CPU cores, with the transformers that the release
names. `python3 -m tests.maintain.tables` writes this page. Off is stock, on is every exact patch.

The tests with MLX load the example's small model if they need one. The others run on a
CPU server (`SGLANG_USE_CPU_ENGINE=1`), where the patches of mla and mamba were gated, and those of
swa are by now. "No platform" is the same without that variable: they are not gated, but stock
itself fails more tests. Each file has a process of its own. A patch is counted in a file if it was
live, or had run, after any of its tests. It is live only once a test has imported what it changes.

No patch of mla and mamba ran: upstream's tests of that code need CUDA
(`test/registered/attention/unittests`), and were not run.

A test that fails in stock too needs a GPU, a kernel, a model of the hub or a package that is not
here. Both sides run at once. If a test differs, its whole file runs again on one side after the
other; the test is unsteady if it does not differ then.
"""


def _counted(files: Mapping[str, int]) -> str:
    return ", ".join(f"`{id}` {count:,}" for id, count in files.items()) or "none"


def _kept(root: Path) -> list[Found]:
    path = root / RESULTS
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    earlier = [Found(**row) for row in rows]
    return sorted(earlier, key=lambda each: (releases.KNOWN.index(each.release), each.kind))


def _sides(
    python: Path, kind: Kind, folder: Path, tests: Sequence[Path], *, at_once: bool
) -> tuple[Side, Side]:
    """Both sides, off and on; at once they take half the time, but can be in each other's way."""
    with contextlib.ExitStack() as both:
        sides = []
        for side in SIDES:
            result = both.enter_context(_side(python, kind, folder, tests, side))
            sides.append(result if at_once else _always(result()))
        off, on = (result() for result in sides)
    return off, on


def _always(side: Side) -> Callable[[], Side]:
    return lambda: side


@contextlib.contextmanager
def _side(
    python: Path, kind: Kind, folder: Path, tests: Sequence[Path], side: str
) -> Iterator[Callable[[], Side]]:
    """Start the tests; what is given waits for their end. They end with the block in any case."""
    with tempfile.TemporaryDirectory() as scratch:
        outcomes, log = Path(scratch, "outcomes.json"), Path(scratch, "log")
        words: list[str | Path] = [
            "env",
            f"--chdir={scratch}",
            python,
            "-m",
            "sglang_perf_patches",
            "run",
        ]
        words += [python, "-W", "ignore", "-m", "pytest", "-q", "--continue-on-collection-errors"]
        words += ["-p", "no:cacheprovider", "-p", "outcomes", f"--outcomes={outcomes}"]
        words += ["--tb=native"]  # others parse the source, in which Python 3.11 can fail
        words += [f"--timeout={TEST_S}", f"--silent-s={SILENT_S}", f"--rootdir={folder}"]
        words += [*kind.options, *tests]
        search = [ROOT / "src", _HARNESS, *kind.search]
        settings = environments.variables(
            PYTHONPATH=os.pathsep.join(map(str, search)),
            SGLANG_PERF_PATCHES=SIDES[side],
            OMP_NUM_THREADS="1",
            HF_HUB_OFFLINE="1",  # there are no models here: don't try for minutes
            HOME=scratch,
            **kind.settings,
        )
        if kind.model:
            settings[kind.model] = str(_model(python, Path(scratch, "model")))
        with processes.started(words, variables=settings, log=log) as process:
            yield lambda: _result(process, folder, outcomes, log)


def _result(process: subprocess.Popen[bytes], folder: Path, outcomes: Path, log: Path) -> Side:
    try:
        process.wait(SIDE_S)
    except subprocess.TimeoutExpired:
        raise NoTests(f"the tests took longer than {SIDE_S} s") from None
    if process.returncode not in (0, 1) or not outcomes.exists():  # 1: a file can't be collected
        line = " ".join(processes.last_lines(log, 1).split())
        raise NoTests(f"pytest ended with {process.returncode}: {line}")
    side = Side(**json.loads(outcomes.read_text(encoding="utf-8")))
    if not set(side.tests.values()) - {"not collected"}:
        raise NoTests(f"none of the tests in {folder} can be collected")
    return side


def _model(python: Path, folder: Path) -> Path:
    """The example's small model; its tokenizer takes conversations too."""
    done = subprocess.run([python, tiny_model.__file__, folder], check=False)
    if done.returncode:
        raise NoTests("the small model could not be written")
    file = folder / "tokenizer_config.json"
    template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    described = json.loads(file.read_text(encoding="utf-8")) | {"chat_template": template}
    file.write_text(json.dumps(described), encoding="utf-8")
    return folder


def _differing(sides: tuple[Side, Side]) -> dict[str, tuple[str, str]]:
    """The tests that came out otherwise: what became of each, off and on."""
    off, on = (side.tests for side in sides)
    pairs = {test: (off.get(test, "missing"), on.get(test, "missing")) for test in {**off, **on}}
    return {test: pair for test, pair in pairs.items() if len(set(pair)) > 1}


def _found(
    release: str,
    kind: Kind,
    folder: Path,
    sides: tuple[Side, Side],
    first: Mapping[str, tuple[str, str]],
    second: Mapping[str, tuple[str, str]],
) -> Found:
    off, on = sides
    same = [outcome for test, outcome in off.tests.items() if test not in first]
    commit, equal, files = _nearness(folder, release)
    differing = {test: second[test] for test in first if test in second}
    return Found(
        release=release,
        kind=kind.name,
        commit=commit,
        equal=equal,
        files=files,
        run=len(same) - same.count("skipped") + len(first),
        passed=same.count("passed"),
        failed=len(same) - same.count("passed") - same.count("skipped"),
        skipped=same.count("skipped"),
        unsteady=[test for test in first if test not in second],
        differing=differing,
        live=on.live,
        ran=on.ran,
        project=_git(ROOT, "rev-parse", "HEAD"),
        date=date.today().isoformat(),
    )


def _nearness(folder: Path, release: str) -> tuple[str, int, int]:
    """The commit of a folder's checkout, and how many of a release's files are there and equal."""
    top = Path(_git(folder, "rev-parse", "--show-toplevel") or folder)
    tree = downloads.tree(release)
    files = sorted((tree / "sglang").rglob("*.py"))
    theirs = [top / "python" / file.relative_to(tree) for file in files]
    pairs = zip(files, theirs, strict=True)
    equal = sum(their.exists() and their.read_bytes() == ours.read_bytes() for ours, their in pairs)
    return _git(folder, "rev-parse", "HEAD"), equal, len(files)


def _git(folder: Path, *words: str) -> str:
    """What git says, "" where it can't."""
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def _file(folder: Path, test: str) -> Path:
    return folder / test.partition("::")[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.maintain.upstream")
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="test/registered/unit, or below"
    )
    parser.add_argument("release", metavar="RELEASE", help="like 0.5.17")
    parser.add_argument("--keep", action="store_true", help=f"put the counts into {RESULTS}")
    kinds = [kind.name for kind in (MLX, CPU, NO_PLATFORM)]
    parser.add_argument("--only", choices=kinds, default="", help="play with nothing else")
    options = parser.parse_args(arguments)
    try:
        with interrupts.turned_into_exceptions():
            outcomes = play(options.folder.resolve(), options.release, options.only)
    except interrupts.Interrupted as interrupted:
        return 128 + interrupted.number
    except (NoTests, processes.Failure, downloads.DownloadError) as error:
        print(f"upstream: {error}", file=sys.stderr)
        return 2
    for each in outcomes:
        print(
            f"{each.release}, {each.kind}: {each.run} tests run, {each.passed} passed, "
            f"{each.failed} fail in stock too, {len(each.unsteady)} unsteady, "
            f"{len(each.differing)} differ; {len(each.live)} patches live, {len(each.ran)} ran"
        )
        for test, (off, on) in each.differing.items():
            print(f"  {test}: off {off}, on {on}")
    if options.keep:
        keep(ROOT, outcomes)
    return 1 if any(each.differing for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
