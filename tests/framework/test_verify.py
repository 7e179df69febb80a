"""``verify``: what each way for a case to end becomes, and the exit code of them all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from throwaway import Throwaway

SETS = """
import functools, sys, types
import throwaway_patches as t
from sglang_perf_patches import proof, sets

sets.NAMES = ("one", "two")
gone = t.declare("two.gone", install="step", targets=("sglang.srt.gone:f",))
t.use(t.STEP, t.TEN, t.HELPER, t.POLICY, gone)

def cases(name, *found):
    module = types.ModuleType(f"{proof.__name__}.{name}")
    module.CASES = found
    module.prepare = lambda: None
    sys.modules[module.__name__] = module

def case(patch, *functions, **more):
    module = types.ModuleType(f"{sets.__name__}.{patch}.proof")
    module.CHECKS = {f"check {name}": functools.partial(play, name) for name in functions}
    sys.modules[module.__name__] = module
    return proof.Case(patch=patch, **{"needs": ("sglang",), "what": "results", **more})

def play(name, inputs):
    import throwaway_cases
    return getattr(throwaway_cases, name)(inputs)

cases("one", case("one.step", "step"), case("one.ten", *FUNCTIONS, **MORE))
cases("two", case("two.helper", "helper"), case("two.policy", "helper", needs=("not_there",)))
"""

CASES = """
import os, sys, time
from sglang_perf_patches.proof import Different, Missing, comparing

def numbers(inputs):
    return inputs(lambda random: random.randint(0, 9))

def step(inputs):
    from sglang.srt.a import Worker
    found = []
    stock = [Worker().step(x) for x in numbers(inputs)]
    with comparing.live("one.step"):
        patched = [Worker().step(x) for x in numbers(inputs)]
    if patched != [x + 100 for x in stock]:   # the throwaway patch adds 100 on purpose
        raise Different("no hundred")
    return len(stock)

def helper(inputs):
    from sglang.srt import a
    return comparing.same("one.step", a.helper, numbers(inputs), ran=False)

def really_differs(inputs):
    from sglang.srt.a import Worker
    return comparing.same("one.step", lambda x: Worker().step(x), numbers(inputs))

def never_runs(inputs):
    return comparing.same("one.ten", lambda x: x, numbers(inputs))

def raises(inputs):
    raise ZeroDivisionError("by a case")

def lacks(inputs):
    raise Missing("it needs a device that is not here")

def dies(inputs):
    print("last words", file=sys.stderr, flush=True)
    os._exit(3)

def hangs(inputs):
    time.sleep(60)
"""


@pytest.fixture
def prepared(throwaway: Throwaway) -> Throwaway:
    throwaway.put("throwaway_cases.py", CASES)
    return throwaway


def verify(
    throwaway: Throwaway, function: str, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run it, with `function`, or more between commas, as the checks of one.ten."""
    functions = tuple(function.split(","))
    sets = SETS.replace("FUNCTIONS", repr(functions)).replace("MORE", repr(more))
    throwaway.put("sitecustomize.py", sets)
    return subprocess.run(
        [sys.executable, "-m", "sglang_perf_patches", "verify", *words],
        env=throwaway.environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )


def outcomes(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return {outcome["patch"]: outcome for outcome in json.loads(done.stdout)["outcomes"]}


def test_every_way_that_needs_no_failure(prepared: Throwaway) -> None:
    done = verify(prepared, "lacks", "--json")
    assert done.returncode == 0, done.stderr
    by_patch = outcomes(done)
    assert {id: one["word"] for id, one in by_patch.items()} == {
        "two.gone": "skipped",
        "two.policy": "skipped",
        "one.step": "equal",
        "one.ten": "skipped",
        "two.helper": "equal",
    }
    assert by_patch["two.gone"]["reason"].startswith("absent: ")
    assert by_patch["two.policy"]["reason"] == "it needs not_there: not installed here"
    assert by_patch["one.ten"]["reason"] == "it needs a device that is not here"
    assert (by_patch["one.step"]["compared"], by_patch["one.step"]["device"]) == (8, "cpu")


@pytest.mark.parametrize(
    ("function", "word", "said"),
    [
        ("really_differs", "different", "result is 1"),
        ("never_runs", "different", "one.ten never ran"),
        ("raises", "failed", "ZeroDivisionError: by a case"),
        ("dies", "failed", "its process ended: last words"),
    ],
)
def test_every_way_that_is_a_failure(
    prepared: Throwaway, function: str, word: str, said: str
) -> None:
    done = verify(prepared, function, "one", "--json")
    assert done.returncode == 1
    by_patch = outcomes(done)
    assert by_patch["one.ten"]["word"] == word
    assert said in by_patch["one.ten"]["reason"]
    assert by_patch["one.step"]["word"] == "equal"
    text = verify(prepared, function, "one")
    assert text.returncode == 1
    assert any(line.split()[:2] == ["one.ten", word] for line in text.stdout.splitlines())


def test_each_check_of_a_case_is_played_and_told_by_its_name(prepared: Throwaway) -> None:
    done = verify(prepared, "really_differs,helper,never_runs", "one.ten", "--json")
    assert done.returncode == 1
    outcome = outcomes(done)["one.ten"]
    assert outcome["word"] == "different"
    assert "check really_differs: one.step, " in outcome["reason"]
    assert "; check never_runs: one.ten never ran" in outcome["reason"]
    assert "helper" not in outcome["reason"]
    failed = outcomes(verify(prepared, "raises,really_differs", "one.ten", "--json"))["one.ten"]
    assert failed["word"] == "failed"
    assert failed["traceback"].startswith("check raises:")


def test_what_a_part_of_a_case_lacks_is_told_beside_what_is_equal(prepared: Throwaway) -> None:
    done = verify(prepared, "helper,helper,lacks", "one.ten", "--json")
    told = [
        (outcome["word"], outcome["compared"], outcome["reason"])
        for outcome in json.loads(done.stdout)["outcomes"]
    ]
    lacks = "check lacks: it needs a device that is not here"
    assert told == [("equal", 8, "results"), ("skipped", 0, lacks)]
    assert done.returncode == 0
    lines = verify(prepared, "helper,lacks", "one.ten").stdout.splitlines()
    assert lines[-1] == "1 equal, 0 built-in or absent, 0 of 1 could not run"


def test_a_case_that_hangs_is_ended(prepared: Throwaway) -> None:
    done = verify(prepared, "hangs", "one.ten", "--json", "--timeout", "3")
    assert done.returncode == 1
    assert outcomes(done)["one.ten"]["reason"] == "no end after 3 s"


def test_a_patch_named_in_full_must_be_compared(prepared: Throwaway) -> None:
    assert verify(prepared, "lacks", "one.ten").returncode == 1
    assert verify(prepared, "lacks", "two.gone").returncode == 1
    assert verify(prepared, "lacks", "one").returncode == 0


def test_a_case_on_another_device_has_its_own_process(prepared: Throwaway) -> None:
    done = verify(prepared, "dies", "one", "--json", device="cuda")
    assert {id: one["word"] for id, one in outcomes(done).items()} == {
        "one.step": "equal",
        "one.ten": "failed",
    }


def test_every_patch_has_a_case() -> None:
    from sglang_perf_patches import proof, sets

    patches = {patch.id for patch_set in sets.load() for patch in patch_set.patches}
    assert {case.patch for case in proof.all_cases()} == patches


def test_one_closing_line(prepared: Throwaway) -> None:
    lines = verify(prepared, "lacks").stdout.splitlines()
    assert lines[-1] == "2 equal, 1 built-in or absent, 2 of 4 could not run"
    lines = verify(prepared, "raises", "one").stdout.splitlines()
    assert lines[-1] == "1 equal, 1 failed, 0 built-in or absent, 0 of 2 could not run"


@pytest.mark.parametrize("names", [("two.policy",), ("two.gone", "two.policy")])
def test_where_nothing_could_be_verified_it_is_exit_1(
    prepared: Throwaway, names: tuple[str, ...]
) -> None:
    assert verify(prepared, "lacks", *names).returncode == 1


def test_nothing_to_verify_for_a_whole_set_is_exit_1(prepared: Throwaway) -> None:
    done = verify(prepared, "lacks", "three", "--json")
    assert done.returncode == 2
    prepared.put("sglang/srt/a.py", "")
    assert verify(prepared, "lacks", "two").returncode == 1


def test_a_traceback_is_shown_to_who_asks(prepared: Throwaway) -> None:
    done = verify(prepared, "raises", "one")
    assert "Traceback" not in done.stdout + done.stderr
    assert "its case ended with ZeroDivisionError: by a case" in done.stdout
    assert "Traceback" in verify(prepared, "raises", "one", "--traceback").stdout


def test_progress_says_what_how_many_and_where(prepared: Throwaway) -> None:
    lines = verify(prepared, "lacks", "one").stderr.splitlines()
    assert [line.split()[:2] for line in lines] == [["[1/2]", "one.step"], ["[2/2]", "one.ten"]]


def test_what_a_case_started_ends_with_it(prepared: Throwaway, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    prepared.put(
        "throwaway_cases.py",
        f"{CASES}\n"
        "def starts(inputs):\n"
        "    import subprocess\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        f"    open({str(pid)!r}, 'w').write(str(child.pid))\n"
        "    time.sleep(600)\n",
    )
    done = verify(prepared, "starts", "one.ten", "--timeout", "3")
    assert done.returncode == 1
    state = Path(f"/proc/{pid.read_text()}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
