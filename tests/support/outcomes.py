"""A plugin of pytest that says what became of each test of somebody else, and which patches ran.

Used with pytest-xdist, by `tests.maintain.upstream`. Given ``--outcomes FILE``, it writes a JSON
object there when the run ends: ``tests``, from a test's id to its outcome, ``live`` and ``ran``,
the patches that were so in the process of the tests after any of them. A file that can't be
collected counts as a test. ``--stand-ins`` lends that process what a CPU lacks of a GPU machine.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

WORST_LAST = ("passed", "skipped", "failed", "not collected", "crashed")
"""What can become of a test; of its phases and subtests the worst counts."""

_tests: dict[str, str] = {}
_patches: dict[str, set[str]] = {"live": set(), "ran": set()}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path)
    parser.addoption("--stand-ins", action="store_true")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--stand-ins") and hasattr(config, "workerinput"):
        from sglang_perf_patches.proof import lent

        lent.lend()
        # Of no device. `lend` leaves it empty, where upstream's tests take the first digit.
        os.environ["CUDA_VISIBLE_DEVICES"] = "9"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In the process of the tests: each report takes the patches' states along."""
    report = yield
    engine: Any = sys.modules.get("sglang_perf_patches.live.engine")
    states = engine.report() if engine and call.when == "teardown" else None
    if states:
        live = [each.id for each in states.patches if each.state == "live"]
        ran = [each.id for each in states.patches if each.ran]
        report.user_properties.append(("patches", {"live": live, "ran": ran}))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the process that waits for it, like all below."""
    for name, value in report.user_properties:
        if name == "patches":
            for kind, ids in dict(value).items():  # type: ignore[call-overload]
                _patches[kind].update(ids)
    # pytest-xdist makes such a report for the test in which a process died.
    _note(report.nodeid, "crashed" if report.when not in _PHASES else report.outcome)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome == "failed":
        _note(report.nodeid, "not collected")


def pytest_sessionfinish(session: pytest.Session) -> None:
    file = session.config.getoption("--outcomes")
    if not hasattr(session.config, "workerinput"):
        patches = {kind: sorted(ids) for kind, ids in _patches.items()}
        file.write_text(json.dumps({"tests": _tests, **patches}), encoding="utf-8")


_PHASES = ("setup", "call", "teardown")


def _note(test: str, outcome: str) -> None:
    before = _tests.get(test, outcome)
    _tests[test] = max(before, outcome, key=WORST_LAST.index)
