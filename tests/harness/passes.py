"""Remembers which tests passed, and with what: they need not run again while all of that is equal.

Tests of one group (`tiers.group_of`) share what they compute, so a group is remembered as one: its
tests, and each file that it can reach. Some files every group is taken to reach, whoever reads
them: the framework, the declarations, the harness. Of the others, `_WHERE_READ`, a group reaches
those that its own modules import and those that it or a fork of `released` has read. A test that
starts another process reaches all files. The rest of the key is the environment: `surroundings`.
"""

import ast
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from functools import cache
from importlib import metadata
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

import pytest

import reads
import tiers
from sglang_perf_patches.model import private

AROUND = "PERF_PATCHES_TESTS_AROUND"
"""The variable with the `surroundings` of a run, which the processes of pytest-xdist inherit."""
HAS_PASSED = "passed before, and nothing that it reaches has changed (--fresh runs it)"
_WHERE_READ = re.compile(
    r"src/sglang_perf_patches/(sets/\w+/\w+/(?!__init__\.py)|verify/\w+/)"
    r"|tests/(proof/)?(mlx|mla|mamba|swa)/|tests/\w+/test_\w+\.py|tests/benchmarks/|.*\.md$"
)
"""Files that a group reaches only if it reads them."""


def surroundings(trees: Iterable[Path]) -> str:
    """The digest of the machine, Python, what is installed, and stock's code in these trees."""
    installed = sorted(f"{each.name} {each.version}" for each in metadata.distributions())
    cpu = Path("/proc/cpuinfo")
    flags = re.findall(r"^(?:flags|Features).*", cpu.read_text(), re.M)[:1] if cpu.exists() else []
    whole = hashlib.sha256(repr((platform.machine(), sys.version, installed, flags)).encode())
    for file in sorted(file for tree in trees for file in tree.rglob("*.py")):
        is_now = file.stat()  # whoever changes a file changes its ctime; to read all takes 12 s
        whole.update(f"{file} {is_now.st_size} {is_now.st_mtime_ns} {is_now.st_ctime_ns}".encode())
    return whole.hexdigest()


def files(root: Path) -> dict[str, str]:
    """The digest of each file of a checkout that git does not ignore, by its path."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    found = {name: digest_of(root / name) for name in sorted(filter(None, listed))}
    return {name: digest for name, digest in found.items() if digest}


def digest_of(file: Path) -> str:
    """The digest of a file's contents; nothing if there is none."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


class Memory:
    """The passes in a folder, for the files of a checkout as they are when the run begins.

    `around` is the digest of all else: `surroundings`, and how the run is asked to play.
    """

    def __init__(self, folder: Path, root: Path, around: str) -> None:
        self.folder, self.root, self.around = folder, root, around
        self.files: Mapping[str, str] = files(root)

    def has(self, group: str, test: str) -> bool:
        """Whether a test of a group has passed with what it reaches now."""
        return test in self._known(group)["tests"]

    def keep(self, group: str, tests: Collection[str], reached: Collection[str]) -> None:
        """These tests of a group have passed, and have reached these files among others.

        Nothing is kept if one of the files is not as it was when the run began.
        """
        known = self._known(group)
        reached = {path for path in reached if path == reads.ANY or _WHERE_READ.match(path)}
        reached |= {*known["reached"]}
        if any(digest_of(self.root / path) != self.files[path] for path in self._counted(reached)):
            return
        place = self._place(group)
        place.parent.mkdir(parents=True, exist_ok=True)
        data = {
            "tests": sorted({*tests, *known["tests"]}),
            "reached": sorted(reached),
            "key": self.key(reached),
        }
        new = place.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(data), encoding="utf-8")
        new.replace(place)

    def key(self, reached: Collection[str]) -> str:
        """The digest of all that decides what becomes of tests that reach these files.

        A new file next to one of them counts too: it may be imported in its place.
        """
        folders = {path.rpartition("/")[0] for path in reached}
        beside = [path for path in self.files if path.rpartition("/")[0] in folders]
        contents = [f"{path} {self.files[path]}" for path in self._counted(reached)]
        all_of_it = [self.around, *sorted(reached), *beside, *contents]
        return hashlib.sha256("\0".join(all_of_it).encode()).hexdigest()

    def _counted(self, reached: Collection[str]) -> list[str]:
        """Of the checkout's files, those whose contents count."""
        return [
            path
            for path in self.files
            if reads.ANY in reached or path in reached or not _WHERE_READ.match(path)
        ]

    def _known(self, group: str) -> dict[str, Any]:
        """What is kept of a group if it still holds, else nothing."""
        try:
            known: dict[str, Any] = json.loads(self._place(group).read_text(encoding="utf-8"))
            if known["key"] == self.key(known["reached"]):
                return known
        except (OSError, ValueError, LookupError, TypeError):
            pass
        return {"tests": [], "reached": []}

    def _place(self, group: str) -> Path:
        return self.folder / f"{hashlib.sha256(group.encode()).hexdigest()[:32]}.json"


def imported_by(test: Path) -> set[str]:
    """The files of the checkout that a test's module and its folder's `conftest` import.

    And what those import; by name, of the modules that are loaded. `reads.ANY` is among them if a
    file of the tests imports by a name that it computes.
    """
    left = [test, *(each / "conftest.py" for each in (test.parent, test.parents[1]))]
    found: set[str] = set()
    while left:
        path = left.pop()
        name = os.path.relpath(path, reads.ROOT)
        if name in found or path.suffix != ".py" or not path.is_file():
            continue
        found.add(name)
        if name.startswith("tests/") and b"import_module(" in path.read_bytes():
            found.add(reads.ANY)
        for module in _names(path):
            file = getattr(sys.modules.get(module), "__file__", None) or ""
            if reads.is_ours(file):
                left.append(Path(file))
    # `verify` imports its checks by name.
    return found | {path for path in reads.loaded() if "/verify/" in path}


@cache
def _names(path: Path) -> list[str]:
    """The modules that a file may import, by their whole names."""
    names: list[str] = []
    package = ".".join(path.relative_to(reads.ROOT).parent.parts).removeprefix("src.")
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = resolve_name("." * node.level + (node.module or ""), package)
            names += [whole, *(f"{whole}.{each.name}" for each in node.names)]
    return names


class Remembered:
    """The plugin: skips what has passed, and remembers what passes. Each worker has its own."""

    def __init__(self, config: pytest.Config) -> None:
        if AROUND not in os.environ:
            os.environ[AROUND] = surroundings((private.cache() / "releases").glob("*"))
        options = ("all", "keyword", "swa_episodes", "slot_episodes")
        asked = [config.getoption(name, None) for name in options]
        asked += [tiers.is_whole(config), os.environ.get(tiers.DEPTH), os.environ[AROUND]]
        folder = private.cache() / "passes" / ("whole" if tiers.is_whole(config) else "default")
        self._memory = Memory(folder, reads.ROOT, repr(asked))
        self._is_fresh = bool(config.getoption("fresh"))
        self._passed: set[str] = set()
        self._others: set[str] = set()
        self._collected: dict[Path, set[str]] = {}
        reads.watch(reads.noted.add)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Note what a module reads when it is imported."""
        report = yield
        if isinstance(collector, pytest.Module):
            self._collected[collector.path] = {*reads.noted}
        _forget_code()
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        name = _name(item.nodeid, tiers.group_of(item))
        if not self._is_fresh and self._memory.has(_played_as(item), name):
            pytest.skip(HAS_PASSED)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed and HAS_PASSED not in report.longreprtext:
            self._others.add(report.nodeid)
        elif report.passed and report.when == "teardown":
            self._passed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[None]:
        """Remember a group at its end, and forget what a folder's tests have read at its."""
        yield
        group = tiers.group_of(item)
        if nextitem is None or tiers.group_of(nextitem) != group:
            if self._passed and not self._others:
                reached = reads.noted | self._collected[item.path] | imported_by(item.path)
                names = [_name(each, group) for each in self._passed]
                self._memory.keep(_played_as(item), names, reached)
            self._passed, self._others = set(), set()
        if nextitem is not None and nextitem.path.parent != item.path.parent:
            _forget_code()


def _played_as(item: pytest.Item) -> str:
    """The group of a test, and the patches of its set of which it tests each variant."""
    of_set = [each for each in tiers.touched() if each.startswith(f"{item.path.parent.name}.")]
    return f"{tiers.group_of(item)} {sorted(of_set)}"


def _name(test: str, group: str) -> str:
    """Without what pytest-xdist appends."""
    return test.removesuffix(f"@{group}")


def _forget_code() -> None:
    """Forget which code was read, which is read again when it is needed; other files are cached."""
    code = {path for path in reads.noted if path.endswith(".py")}
    reads.noted.difference_update(code, {reads.ANY})
