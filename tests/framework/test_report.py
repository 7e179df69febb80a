"""What a benchmark prints: ratios, and tables as text, JSON and one page."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_perf_patches.bench import nvidia, page, report, timing
from sglang_perf_patches.bench.report import Counted, Report, Table
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
    ratio = timing.ratio([1.0, 2.0, 4.0], [0.5, 2.0, 1.0])
    assert (ratio.stock, ratio.patched) == (2.0, 1.0)
    assert (ratio.low, ratio.ratio, ratio.high) == (0.375, 0.5, 0.75)
    assert str(HALF) == "0.50 (0.40-0.60)"


def test_both_sides_take_turns_whose_order_alternates() -> None:
    seen: list[str] = []

    def side(name: str, seconds: float) -> float:
        seen.append(name)
        return seconds

    times = timing.in_turns(lambda: side("stock", 2.0), lambda: side("patched", 3.0), 3)
    assert seen == ["patched", "stock", "stock", "patched", "patched", "stock"]
    assert times is not None
    assert (times.stock, times.patched, times.ratio) == (2.0, 3.0, 1.5)
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
    assert (
        "<h1>mla: faster in 1 of 2 cases, 0.50 of stock&#x27;s time; "
        "slower in 1 of 2 cases, 2.00 of stock&#x27;s time</h1>"
    ) in report.to_html(REPORT)
    less = [Ratio(1.0, part, part, part, part + 0.01) for part in (0.64, 0.89, 0.7)]
    assert report.headline([*less, Ratio(1.0, 1.0, 1.0, 0.98, 1.02)]) == (
        "faster in 3 of 4 cases, 0.64 to 0.89 of stock's time; no difference beyond the spread in 1"
    )
    assert report.headline([Ratio(1.0, 1.0, 1.0, 0.98, 1.02)]) == (
        "no difference in time beyond the spread in 1 case"
    )
    skipped = Report("0.5.23 at /x", {}, (), {"mla": "skipped"}, {"mla": "no GPU"})
    assert "<h1>mla: skipped: no GPU</h1>" in report.to_html(skipped)


COUNTED = Table(
    "swa",
    "admitted",
    ("window", "pools", "prompt", "admitted, stock", "admitted, patched"),
    ((128, 0.25, 8192, 7, 64), (128, 0.5, 32_768, 0, 1), (4096, 0.5, 96, 96, 96)),
    counted=Counted(
        "admitted",
        (("prompt 8192", 7, 64), ("prompt 32768", 0, 1), ("prompt 96", 96, 96)),
    ),
)


def test_counts_have_a_verdict_and_a_plot() -> None:
    counted = Report("0.5.23 at /x", {}, (COUNTED,), {"swa": "equal"})
    assert report.verdict(counted, "swa") == "swa: admitted: more in 2 of 3 cases, at most 7 → 64"
    page = report.to_html(counted)
    assert page.count("<svg") == 3 + 1
    assert "prompt 8192: 7 → 64" in page
    assert "same results" not in page
    assert "admitted: from stock, the dot, to patched; more is better" in page
    # A bar from stock's count to the patched one's, on an axis that both are on.
    (bar,) = re.findall(r"prompt 8192: .*?x=([\d.]+)% width=([\d.]+)%.*?cx=([\d.]+)%", page)
    assert [float(part) for part in bar] == [pytest.approx(7), pytest.approx(57), pytest.approx(7)]
    untimed = Report("", {}, (replace(COUNTED, counted=None),), {"swa": "equal"})
    assert report.verdict(untimed, "swa") == "swa: equal to stock; nothing was timed"
    assert report.table_from_json(report.table_to_json(COUNTED)) == COUNTED


def test_fewer_may_be_what_a_patch_is_for() -> None:
    fewer = Counted("waits", (("half", 9, 4), ("all", 0, 0)), fewer_is_better=True)
    fewer_report = Report("", {}, (COUNTED, replace(COUNTED, counted=fewer)), {"swa": "equal"})
    assert report.verdict(fewer_report, "swa") == (
        "swa: admitted: more in 2 of 3 cases, at most 7 → 64; "
        "waits: fewer in 1 of 2 cases, at most 9 → 4"
    )
    page = report.to_html(fewer_report)
    assert "waits: from stock, the dot, to patched; fewer is better" in page
    assert "<div class='said better'>9 → 4</div>" in page
    assert "<div class='said none'>0 → 0</div>" in page


def test_whole_numbers_are_whole_and_ratios_are_ratios_on_the_page() -> None:
    page = report.to_html(REPORT) + report.to_html(
        replace(REPORT, tables=(replace(COUNTED, set="mla"),))
    )
    assert "<td class=n data-label='admitted, stock'>96</td>" in page
    assert not re.search(r"96\.0(?!\d?%)", page)
    assert "<td class=n data-label='patched : stock'>0.50 (0.40 to 0.60)</td>" in page
    assert " %" not in re.sub(r"<style>.*?</style>", "", page)


def test_a_bar_that_leaves_the_axis_says_so() -> None:
    bars = [page.Bar("a", each, each, each, "better", "text") for each in (0.5, 1.9)]
    assert "goes on" not in page.plot(bars, "axis")
    long = page.Bar("b", 6.11, 6.11, 6.11, "better", "611 % more")
    plot = page.plot([*bars, long], "axis")
    assert plot.count("class=over") == 1
    assert "axis; what ends in → goes on" in plot


@pytest.mark.parametrize(("columns", "kind"), [(6, "small"), (9, "wide"), (16, "many")])
def test_a_wide_table_is_cards_on_narrower_pages(columns: int, kind: str) -> None:
    table = page.table([f"c{number}" for number in range(columns)], [[("1", True)] * columns])
    assert f"<div class=scroll><table class={kind}>" in table
    assert f"table.{kind} tr{{display:block}}" in page.document("t", [])


@pytest.mark.parametrize("columns", [60, 80])
def test_a_table_fits_a_narrow_terminal(columns: int) -> None:
    text = report.to_text(COUNTED, columns)
    assert max(map(len, text.splitlines())) <= columns
    assert text.count("admitted, patched") == 1


@pytest.mark.parametrize("count", [3, 9, 30])
def test_a_table_is_at_most_100_columns_wide(count: int) -> None:
    columns = ("case", *(f"figure {number}, stock, ms" for number in range(count)))
    wide = Table("mlx", "title " * 30, columns, (("a", *range(count)),), ("note " * 60,))
    text = report.to_text(wide)
    assert max(map(len, text.splitlines())) <= report.WIDTH
    for number in range(count):
        assert text.count(f"figure {number}, stock, ms") == 1
    assert sum(line.startswith("case") for line in text.splitlines()) == -(-count // 4)


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
    machine = report.machine()
    assert machine["system"]
    assert machine["processor"]
    assert machine["python"].startswith("3.")


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
