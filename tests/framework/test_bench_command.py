"""``bench``: its sets and patches, how it ends, and what it leaves to each set's module."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from throwaway import Throwaway

from sglang_perf_patches import bench as bench_room
from sglang_perf_patches import sets
from sglang_perf_patches.bench import mlx, swa, timing
from sglang_perf_patches.model.patch import by_id

COMMAND = "sglang-perf-patches bench server -- COMMAND"

SETS = """
import sys, types
import throwaway_patches as t
from sglang_perf_patches import bench, sets

sets.NAMES = bench.NAMES = ("one", "two")
gone = t.declare("two.gone", install="step", targets=("sglang.srt.gone:f",))
t.use(t.STEP, t.TEN, t.HELPER, t.BOTH, gone)
for name in ("one", "two"):
    module = types.ModuleType(f"{bench.__name__}.{name}")
    sys.modules[module.__name__] = module
    exec(MODULE, {"__name__": module.__name__, **vars(module)}, vars(module))
"""
MODULE = """
CHANGED_BY = {"one.step", "one.ten", "two.both"}

def add_options(parser):
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--patches", default="")

def tables(given, name=__name__.rpartition(".")[2]):
    import os, sys
    from sglang_perf_patches import bench, proof
    from sglang_perf_patches.bench.report import Table
    print("a library's own words")
    applying = [id for id, word in bench.words(name).items() if word == "applies"]
    if HOW == "nothing":
        return
    yield Table(name, "what applies", ("patch", "size"), tuple((id, given.size) for id in applying))
    if name == "two" and HOW == "differs":
        raise proof.Different("the third value")
    if name == "two" and HOW == "lacks":
        raise proof.Missing("it needs a GPU")
    if name == "two" and HOW == "raises":
        raise ZeroDivisionError("by a bench")
    if name == "two" and HOW == "dies":
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)
"""


def bench(throwaway: Throwaway, how: str, *words: str) -> subprocess.CompletedProcess[str]:
    module = MODULE.replace("HOW", repr(how))
    throwaway.put("sitecustomize.py", f"MODULE = {module!r}\n{SETS}")
    return subprocess.run(
        [sys.executable, "-m", "sglang_perf_patches", "bench", *words],
        env=throwaway.environment(XDG_CACHE_HOME=str(throwaway.site.parent / "cache")),
        capture_output=True,
        text=True,
        timeout=600,
    )


def rows(done: subprocess.CompletedProcess[str]) -> dict[str, list[list[Any]]]:
    return {table["set"]: table["rows"] for table in json.loads(done.stdout)["tables"]}


def test_every_set_and_one_closing_line(throwaway: Throwaway) -> None:
    done = bench(throwaway, "")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-5:] == [
        "2 of 2 equal to stock and measured in 2 tables",
        "one: equal to stock; nothing was timed",
        "two: equal to stock; nothing was timed",
        "two: not played: only a whole server shows what two.helper changes:",
        f"  SGLANG_PERF_PATCHES=two.helper {COMMAND}",
    ]
    assert "library" not in done.stdout
    assert [line for line in done.stderr.splitlines() if line.startswith("[")] == [
        "[1/2] bench one ...",
        "[2/2] bench two ...",
    ]


def test_a_patch_alone(throwaway: Throwaway) -> None:
    assert rows(bench(throwaway, "", "one", "--json")) == {"one": [["one.step", 1], ["one.ten", 1]]}
    assert rows(bench(throwaway, "", "one.ten", "--json")) == {"one": [["one.ten", 1]]}
    two = rows(bench(throwaway, "", "one.ten", "two.both", "one.step", "--json"))
    assert two == {"one": [["one.step", 1], ["one.ten", 1]], "two": [["two.both", 1]]}
    assert rows(bench(throwaway, "", "one.ten", "--size", "7", "--json")) == {
        "one": [["one.ten", 7]]
    }


@pytest.mark.parametrize(
    ("how", "word", "said", "code"),
    [
        ("differs", "different", "the third value", 1),
        ("lacks", "skipped", "it needs a GPU", 0),
        ("raises", "failed", "it failed with ZeroDivisionError: by a bench", 1),
        ("dies", "failed", "its process ended: exit code 3", 1),
    ],
)
def test_each_way_to_end(throwaway: Throwaway, how: str, word: str, said: str, code: int) -> None:
    done = bench(throwaway, how)
    assert done.returncode == code
    assert f"two: {word}: {said}\n" in done.stdout
    assert done.stdout.splitlines()[-3:] == [
        f"1 of 2 equal to stock and measured in 2 tables, 1 {word}",
        "one: equal to stock; nothing was timed",
        f"two: {word}: {said}",
    ]
    assert "Traceback" not in done.stdout + done.stderr


def test_where_nothing_could_be_measured_it_is_exit_1(throwaway: Throwaway) -> None:
    assert bench(throwaway, "lacks", "two").returncode == 1
    gone = bench(throwaway, "", "two.gone")
    assert gone.returncode == 1
    assert "two: skipped: two.gone is absent" in gone.stdout
    assert gone.stdout.startswith("0 of 1 equal to stock and measured in 0 tables, 1 skipped")


def test_what_only_a_whole_server_shows_is_refused_in_one_sentence(throwaway: Throwaway) -> None:
    """At once, before anything is played, in whatever way it is named."""
    lines = [
        "two: skipped: only a whole server shows what two.helper changes:",
        f"  SGLANG_PERF_PATCHES=two.helper {COMMAND}",
    ]
    for words in (("two.helper",), ("two", "--patches", "two.helper")):
        done = bench(throwaway, "dies", *words)
        assert (done.returncode, done.stdout.splitlines()[1:]) == (1, lines)
        assert "last words" not in done.stderr
    both = bench(throwaway, "", "two.both", "two.helper")
    assert both.returncode == 0
    assert both.stdout.splitlines()[-1] == f"  SGLANG_PERF_PATCHES=two.helper {COMMAND}"


def test_a_bench_without_a_table_measured_nothing(throwaway: Throwaway) -> None:
    done = bench(throwaway, "nothing", "two.both")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == (
        "two: skipped: this machine can play nothing of it; "
        "bench server measures it in your own server"
    )


def test_each_set_names_patches_of_its_own() -> None:
    patches = by_id(sets.load())
    for name in bench_room.NAMES:
        assert bench_room.changed_by(name) <= {id for id in patches if patches[id].set == name}


def test_a_traceback_is_shown_to_who_asks(throwaway: Throwaway) -> None:
    assert "ZeroDivisionError" in bench(throwaway, "raises", "two", "--traceback").stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("three",), "unknown set or patch 'three'"),
        (("one", "two", "--size", "7"), "needs the name of one set"),
        (("one", "--frobnicate"), "usage: sglang-perf-patches bench one"),
    ],
)
def test_bad_usage(throwaway: Throwaway, words: tuple[str, ...], said: str) -> None:
    done = bench(throwaway, "", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_the_last_one_is_kept_for_this_user_alone(throwaway: Throwaway) -> None:
    bench(throwaway, "", "one")
    kept: Path = throwaway.site.parent / "cache" / "sglang-perf-patches" / "last-bench.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert json.loads(kept.read_text())["tables"][0]["set"] == "one"


def test_a_patch_is_played_alone_only_what_it_can_change() -> None:
    """The runs themselves are of `tests/mlx`; here is what each name asks for."""
    given = mlx_options(named=("mlx.last-row",))
    assert list(mlx._batches(given, False, can_chain=True, has_any=False)) == []
    assert len(list(mlx._batches(given, False, can_chain=True, has_any=True))) == 2
    every = swa.planned(swa.CHANGED_BY, (), swa.DECODING)
    assert every.selections == swa.SELECTIONS
    assert (every.admission, every.decoding) == (swa.ADMISSION, swa.DECODING)


def test_bench_swa_plays_what_the_patches_of_a_release_can_change() -> None:
    def planned(*applying: str, named: tuple[str, ...] = ()) -> swa.Plan:
        return swa.planned(frozenset(f"swa.{name}" for name in applying), named, swa.DECODING)

    unpaged = planned("page-size-1")
    assert {load.page_size for load in unpaged.admission + unpaged.decoding} == {1}
    assert unpaged.idle == ()
    assert planned("tail-prealloc", "page-size-1").admission == swa.ADMISSION
    idle = planned("idle-admission")
    assert (idle.admission, idle.decoding, idle.idle) == ((), (), (64,))
    assert planned("idle-admission", "page-size-1").idle == (1, 64)
    # A policy can change any load that is decoded; the exact patches only what they reserve.
    policy = planned("page-size-1", "evict-before-retract")
    assert policy.decoding == swa.DECODING
    assert list(policy.selections) == ["stock", "patched", "+ evict-before-retract"]
    paged, unpaged_load = swa.DECODING[:2]
    assert not policy.changes("patched", paged)
    assert policy.changes("patched", unpaged_load)
    assert policy.changes("+ evict-before-retract", paged)
    alone = planned("page-size-1", "evict-before-retract", named=("swa.page-size-1",))
    assert list(alone.selections) == ["stock", "patched"]


def mlx_options(named: tuple[str, ...]) -> argparse.Namespace:
    """The options of `bench mlx`, as its process has them."""
    parser = argparse.ArgumentParser()
    mlx.add_options(parser)
    return argparse.Namespace(**vars(parser.parse_args([])), quick=False, named=named)


def test_progress_is_whole_lines_and_not_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(timing.progress([1, 2, 3], "bench x")) == [1, 2, 3]
    assert capsys.readouterr().err == "  bench x: 1 of 3, 0 s\n"


@pytest.mark.parametrize(
    ("patched", "stock_again", "patched_again", "said", "equal"),
    [
        ("abc", "", "", "equal", True),
        ("abX", "abY", "", "stock's own differ from run to run", True),
        ("abX", "Zbc", "", "stock's own differ from run to run", True),
        ("aXc", "abY", "aXc", "different in 4 of 4 runs from step 1 on", False),
        ("aXc", "abc", "abc", "different in 1 of 4 runs from step 1 on", False),
    ],
)
def test_stock_excuses_other_logits_only_where_its_own_differ(
    patched: str, stock_again: str, patched_again: str, said: str, equal: bool
) -> None:
    def logits(digests: str) -> mlx.Logits:
        return list(zip(("the prefill of r0", "step 1", "step 2"), digests, strict=True))

    judged = mlx.judge_logits(
        logits("abc"), logits(patched), lambda: logits(stock_again), lambda: logits(patched_again)
    )
    assert judged == (said, equal)
