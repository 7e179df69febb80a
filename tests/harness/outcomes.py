"""A plugin of pytest that says what became of each test of somebody else, and which patches ran.

Used by `tests.maintain.upstream`. Given ``--outcomes FILE``, it writes a JSON object there when the
run ends: ``tests``, from a test's id to its outcome, ``live`` and ``ran``, from a patch to the
number of files after one of whose tests it was so. A file that can't be collected counts as a test.
``--stand-ins`` lends the process what a CPU lacks of a GPU machine.

Each file's tests have a process of their own, a fork of the one that collected them all: what a
test makes known of a server gates patches for as long as its process lives. A test that ends the
process has crashed, and the tests after it get another one.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

WORST_LAST = ("passed", "skipped", "failed", "not collected", "crashed")
"""What can become of a test; of its phases and subtests the worst counts."""

_tests: dict[str, str] = {}
_patches: dict[str, dict[str, set[Path]]] = {"live": defaultdict(set), "ran": defaultdict(set)}
_parent: list[Connection] = []  # of a file's process; empty in the one that forks them


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path)
    parser.addoption("--stand-ins", action="store_true")
    parser.addoption("--silent-s", type=int, help="a process that is silent for longer is ended")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--stand-ins"):
        from tests.proof import stubs

        stubs.lend()
        # Of no device. `lend` leaves it empty, where upstream's tests take the first digit.
        os.environ["CUDA_VISIBLE_DEVICES"] = "9"


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Play each file in a process of its own."""
    for file, tests in itertools.groupby(session.items, key=lambda item: item.path):
        left = list(tests)
        while left:
            left = left[_play(file, left, session.config.getoption("--silent-s")) :]
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _parent[0].send((report.nodeid, report.outcome))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome == "failed":
        _note(report.nodeid, "not collected")


def pytest_sessionfinish(session: pytest.Session) -> None:
    patches = {
        kind: {id: len(files) for id, files in sorted(of.items())} for kind, of in _patches.items()
    }
    outcomes = json.dumps({"tests": _tests, **patches})
    session.config.getoption("--outcomes").write_text(outcomes, encoding="utf-8")


def _play(file: Path, tests: Sequence[pytest.Item], silent_s: int) -> int:
    """Play tests of a file, in order, until one ends the process; how many it was."""
    received, sent = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if not pid:
        received.close()
        _parent.append(sent)
        try:
            _play_here(tests)
        finally:
            os._exit(0)  # whatever was raised; the parent sees what was not played
    sent.close()
    played = 0
    try:
        while played < len(tests) and received.poll(silent_s):
            test, outcome = received.recv()
            if test:
                _note(test, outcome)
            else:
                played += 1
                for kind, ids in outcome.items():
                    for each in ids:
                        _patches[kind][each].add(file)
    except EOFError:
        pass
    if played < len(tests):
        os.kill(pid, signal.SIGKILL)  # it is silent, or a zombie already
        _note(tests[played].nodeid, "crashed")
        played += 1
    os.waitpid(pid, 0)
    return played


def _play_here(tests: Sequence[pytest.Item]) -> None:
    for test, after in itertools.zip_longest(tests, tests[1:]):
        test.config.hook.pytest_runtest_protocol(item=test, nextitem=after)
        _parent[0].send(("", _states()))


def _states() -> dict[str, list[str]]:
    """The patches that are live and that ran in this process."""
    engine: Any = sys.modules.get("sglang_perf_patches.live.engine")
    report = engine.report() if engine else None
    patches = report.patches if report else ()
    return {
        "live": [each.id for each in patches if each.state == "live"],
        "ran": [each.id for each in patches if each.ran],
    }


def _note(test: str, outcome: str) -> None:
    before = _tests.get(test, outcome)
    _tests[test] = max(before, outcome, key=WORST_LAST.index)
