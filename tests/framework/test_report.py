"""What a benchmark prints: ratios, and tables as text, JSON and one page."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

from sglang_perf_patches.bench import nvidia, report, timing
from sglang_perf_patches.bench.report import Report, Table
from sglang_perf_patches.bench.timing import Ratio

HALF = Ratio(2e-3, 1e-3, 0.5, 0.4, 0.6)
TABLE = Table(
    "mla",
    "a <step>",
    ("case", "requests", "stock ms", "patched : stock"),
    (("one", 1, 2.0, HALF), ("many & more", 64, None, Ratio(1.0, 2.0, 2.0, 1.5, 2.5))),
    ("Measured on a busy machine.",),
)
REPORT = Report("0.5.23 at /x", {"system": "Linux"}, (TABLE,), {"mla": "equal"}, {"mla": ""})


def test_a_ratio_is_the_median_of_the_pairs_not_the_ratio_of_medians() -> None:
    found = timing.ratio([1.0, 2.0, 4.0], [0.5, 2.0, 1.0])
    assert (found.stock, found.patched) == (2.0, 1.0)
    assert (found.low, found.ratio, found.high) == (0.375, 0.5, 0.75)
    assert str(HALF) == "0.50 (0.40-0.60)"


def test_both_sides_take_turns_whose_order_alternates() -> None:
    seen: list[str] = []

    def side(name: str, seconds: float) -> float:
        seen.append(name)
        return seconds

    found = timing.in_turns(lambda: side("stock", 2.0), lambda: side("patched", 3.0), 3)
    assert seen == ["patched", "stock", "stock", "patched", "patched", "stock"]
    assert found is not None
    assert (found.stock, found.patched, found.ratio) == (2.0, 3.0, 1.5)
    assert timing.in_turns(lambda: 1.0, lambda: 1.0, 1) is None


def test_a_call_is_timed_after_a_warm_up_and_until_the_device_has_finished() -> None:
    seen: list[str] = []

    def work() -> None:
        seen.append("run")
        time.sleep(0.002)

    seconds = timing.call_time(work, 3, lambda: seen.append("wait"), warm_up=2)
    assert seen == ["run", "run", "wait", "run", "run", "run", "wait"]
    assert 0.002 <= seconds < 0.2


def test_the_text_has_every_cell() -> None:
    text = report.to_text(TABLE)
    assert text.splitlines()[0] == "mla: a <step>"
    assert "one" in text
    assert "0.50 (0.40-0.60)" in text
    assert text.splitlines()[4].split()[-3:] == ["-", "2.00", "(1.50-2.50)"]
    assert text.endswith("Measured on a busy machine.")


def test_tables_survive_the_way_between_processes() -> None:
    assert report.table_from_json(report.table_to_json(TABLE)) == TABLE


def test_json_has_all_of_the_report() -> None:
    data = json.loads(report.to_json(REPORT))
    assert data["tables"][0]["rows"][0][3]["ratio"] == 0.5
    assert data["ended"] == {"mla": "equal"}


def test_the_page_stands_alone_and_escapes() -> None:
    page = report.to_html(REPORT)
    assert "a &lt;step&gt;" in page
    assert "many &amp; more" in page
    assert page.count("<svg") == 2 + 1  # a line for each ratio, and the axis
    assert not re.search(r"https?:|src=|href=|@import|url\(", page)


def test_the_page_opens_with_what_was_found() -> None:
    assert "<h1>mla: 50 % less time in 1 of 2 cases, 100 % more time in 1 of 2 cases</h1>" in (
        report.to_html(REPORT)
    )
    less = [Ratio(1.0, part, part, part, part + 0.01) for part in (0.64, 0.89, 0.7)]
    assert report.headline("mlx", [*less, Ratio(1.0, 1.0, 1.0, 0.98, 1.02)]) == (
        "mlx: 11 to 36 % less time in 3 of 4 cases"
    )
    assert report.headline("mlx", [Ratio(1.0, 1.0, 1.0, 0.98, 1.02)]) == (
        "mlx: no difference in time in 1 case"
    )
    skipped = Report("0.5.23 at /x", {}, (), {"mla": "skipped"}, {"mla": "no GPU"})
    assert "<h1>mla: skipped: no GPU</h1>" in report.to_html(skipped)


def test_the_page_says_notes_once_and_how_to_repeat_it() -> None:
    twice = Report("0.5.23 at /x", {}, (TABLE, TABLE), {"mla": "equal"}, {}, "bench <mla>")
    page = report.to_html(twice)
    assert page.count("Measured on a busy machine.") == 1
    assert "<code>bench &lt;mla&gt;</code>" in page


def test_numbers_have_no_exponent_and_three_digits() -> None:
    text = report.to_text(Table("mla", "t", ("a", "b"), ((1234.5, 0.01234), (12.345, 0.0))))
    assert text.split()[4:] == ["1234", "0.0123", "12.3", "0"]


def test_a_page_that_cannot_be_written_is_said_before_measuring(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "no folder" / "page.html"):
        with pytest.raises(report.PageError, match="can't be written"):
            report.require_writable(place)
        with pytest.raises(report.PageError, match="can't be written: "):
            report.write_page(place, REPORT)
    page = tmp_path / "page.html"
    report.require_writable(page)
    report.write_page(page, REPORT)
    report.require_writable(page)
    assert page.read_text(encoding="utf-8") == report.to_html(REPORT)


def test_the_machine_is_named() -> None:
    found = report.machine()
    assert found["system"]
    assert found["processor"]
    assert found["python"].startswith("3.")


def test_what_differs_is_exit_1() -> None:
    assert report.worst(["equal", "skipped"]) == 0
    assert report.worst(["equal", "different"]) == 1
    assert report.worst(["failed"]) == 1


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo NVIDIA H200; echo NVIDIA L4", ["NVIDIA H200", "NVIDIA L4"]),
        ("echo 1; exit 9", []),
        ("exec sleep 60", []),
    ],
)
def test_a_tool_that_fails_or_hangs_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, found: list[str]
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(nvidia, "_LIMIT_S", 0.5)
    assert nvidia.smi("name") == found
    assert report.machine().get("gpu", "") == ", ".join(found)
    for process in nvidia._abandoned:
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    nvidia._abandoned.clear()
