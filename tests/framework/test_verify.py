"""``verify``: what each way for a case to end becomes, and the exit code of them all."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from throwaway import Throwaway

from linux_mlx.processes import runs
from sglang_perf_patches import sets
from sglang_perf_patches import verify as package
from sglang_perf_patches.model.patch import by_id
from sglang_perf_patches.verify import Check, child, runner
from tests.proof import needs_no_scheduler

SETS = """
import functools
import throwaway_patches as t
from sglang_perf_patches import sets, verify
from sglang_perf_patches.verify import runner

sets.NAMES = ("one", "two")
gone = t.declare("two.gone", install="step", targets=("sglang.srt.gone:f",))
t.use(t.STEP, t.TEN, t.HELPER, t.POLICY, gone)

def cases(patch):
    device = "mlx" if patch == "two.policy" else "cuda"
    modules = [module for module in (patch, f"{patch}_part") if module in CHECKS]
    return [verify.Case(patch, f"results of {module}", device, module) for module in modules]

def play(name, inputs):
    import throwaway_cases
    return getattr(throwaway_cases, name)(inputs)

verify.cases = runner.cases = cases
verify.checks = lambda module: {
    f"check {name}": functools.partial(play, name) for name in CHECKS[module]
}
verify.NEEDS.update(cuda=("sglang",), mlx=("not_there",))
"""

CASES = """
import os, sys, time
from sglang_perf_patches.verify import Different, Missing, comparing

def numbers(inputs):
    return inputs(lambda random: random.randint(0, 9))

def step(inputs):
    from sglang.srt.a import Worker
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


def sets_with(
    of_ten: Sequence[str],
    of_step: Sequence[str] = ("step",),
    part: Sequence[str] = (),
    without: Sequence[str] = (),
) -> str:
    """`SETS` with these checks of one.ten, and of one.step and a second file of it, if any.

    Nothing of the patches `without` depends on the device.
    """
    checks = {"one.step": of_step, "one.ten": of_ten, "two.helper": ("helper",), "two.policy": ()}
    checks |= {"one.step_part": part} if part else {}
    kept = {name: named for name, named in checks.items() if name not in without}
    return f"CHECKS = {kept!r}\n{SETS}"


def verify(
    throwaway: Throwaway,
    function: str,
    *words: str,
    gpu: str | None = "9.0",
    **more: tuple[str, ...],
) -> subprocess.CompletedProcess[str]:
    """Run it with these checks of one.ten, between commas, on a device of that capability."""
    text = sets_with(function.split(","), **more)
    throwaway.put("sitecustomize.py", f"{text}runner.gpu.capability = lambda: {gpu!r}\n")
    return throwaway.command("verify", *words)


def outcomes(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return {outcome["patch"]: outcome for outcome in json.loads(done.stdout)["outcomes"]}


def test_every_way_that_needs_no_failure(prepared: Throwaway) -> None:
    done = verify(prepared, "lacks", "--json")
    assert done.returncode == 0, done.stderr
    by_patch = outcomes(done)
    assert {id: one["word"] for id, one in by_patch.items()} == {
        "two.gone": "absent",
        "two.policy": "skipped",
        "one.step": "equal",
        "one.ten": "skipped",
        "two.helper": "equal",
    }
    assert by_patch["two.policy"]["reason"] == "needs not_there, not installed here"
    assert by_patch["one.ten"]["reason"] == "it needs a device that is not here"
    assert (by_patch["one.step"]["compared"], by_patch["one.step"]["device"]) == (8, "cuda")
    lines = verify(prepared, "lacks").stdout.splitlines()
    assert lines[-1] == "2 equal, 1 built-in or absent, 2 of 4 could not run"


@pytest.mark.parametrize(
    ("function", "word", "said"),
    [
        ("really_differs", "different", "result is 1"),
        ("never_runs", "different", "one.ten never ran"),
        ("raises", "failed", "ZeroDivisionError: by a case"),
        ("dies", "failed", "its process ended: last words"),
    ],
)
def test_every_way_of_a_failure(prepared: Throwaway, function: str, word: str, said: str) -> None:
    done = verify(prepared, function, "one", "--json")
    assert done.returncode == 1
    by_patch = outcomes(done)
    assert by_patch["one.ten"]["word"] == word
    assert said in by_patch["one.ten"]["reason"]
    assert by_patch["one.step"]["word"] == "equal"
    assert ("Traceback" in done.stdout) == (function == "raises")
    text = verify(prepared, function, "one")
    assert text.returncode == 1
    lines = text.stdout.splitlines()
    assert any(line.split()[:2] == ["one.ten", word] for line in lines)
    assert lines[-1] == f"1 equal, 1 {word}, 0 built-in or absent, 0 of 2 could not run"
    assert "Traceback" not in text.stdout + text.stderr
    ended = "its case ended with ZeroDivisionError: by a case"
    assert (ended in text.stdout) == (function == "raises")


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
    assert told == [("equal", 8, "results of one.ten"), ("skipped", 0, lacks)]
    assert done.returncode == 0
    lines = verify(prepared, "helper,lacks", "one.ten").stdout.splitlines()
    assert lines[-1] == "1 equal, 0 built-in or absent, 0 of 1 could not run"


def test_a_case_that_hangs_is_ended(prepared: Throwaway) -> None:
    done = verify(prepared, "hangs", "one.ten", "--json", "--timeout", "3")
    assert done.returncode == 1
    assert outcomes(done)["one.ten"]["reason"] == "no end after 3 s"


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (("one.ten",), 1),
        (("two.gone",), 1),
        (("one",), 0),
        (("two.policy",), 1),
        (("two.gone", "two.policy"), 1),
        (("three", "--json"), 2),
    ],
)
def test_a_patch_named_in_full_must_be_compared(
    prepared: Throwaway, names: tuple[str, ...], code: int
) -> None:
    assert verify(prepared, "lacks", *names).returncode == code


def test_nothing_to_verify_for_a_whole_set_is_exit_1(prepared: Throwaway) -> None:
    prepared.put("sglang/srt/a.py", "")
    assert verify(prepared, "lacks", "two").returncode == 1


def test_what_upstream_has_needs_no_comparison() -> None:
    known = [runner.Outcome("two.built", "built-in", "upstream has it")]
    assert runner.exit_code(known, ["two.built"]) == 0
    assert runner.exit_code([*known, runner.Outcome("two.gone", "absent", "no")], []) == 1


def test_each_set_has_its_own_process(prepared: Throwaway) -> None:
    done = verify(prepared, "dies", "--json")
    assert {id: one["word"] for id, one in outcomes(done).items()} == {
        "one.step": "equal",
        "one.ten": "failed",
        "two.gone": "absent",
        "two.helper": "equal",
        "two.policy": "skipped",
    }


def test_each_file_of_a_patch_that_has_several_has_its_own_process(prepared: Throwaway) -> None:
    """The patch of both is not equal if one of them is not."""
    done = verify(prepared, "helper", "one", "--json", part=("dies",))
    told = {
        outcome["reason"]: (outcome["patch"], outcome["word"])
        for outcome in json.loads(done.stdout)["outcomes"]
    }
    assert told == {
        "results of one.step": ("one.step", "equal"),
        "results of one.ten": ("one.ten", "equal"),
        "its process ended: last words": ("one.step", "failed"),
    }
    assert done.returncode == 1
    lines = verify(prepared, "helper", "one", part=("dies",)).stdout.splitlines()
    assert lines[-1] == "1 equal, 1 failed, 0 built-in or absent, 0 of 2 could not run"
    assert verify(prepared, "helper", "one", part=("lacks",)).returncode == 0
    assert verify(prepared, "helper", "one.step", part=("lacks",)).returncode == 0


def test_what_depends_on_no_device_is_proven_and_nothing_runs(prepared: Throwaway) -> None:
    done = verify(prepared, "dies", "one", without=("one.step", "one.ten"))
    assert done.returncode == 0, done.stderr
    told = "proven on exactly this code; nothing depends on this machine"
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert {f"one.step {told}", f"one.ten {told}"} <= set(lines)
    assert lines[-1] == "0 equal, 2 proven, 0 built-in or absent, 0 of 2 could not run"
    assert verify(prepared, "dies", "one.ten", without=("one.ten",)).returncode == 0


def test_without_a_gpu_only_a_named_patch_fails(prepared: Throwaway) -> None:
    done = verify(prepared, "dies", "one", "--json", gpu=None)
    assert done.returncode == 0, done.stderr
    told = [(outcome["word"], outcome["reason"]) for outcome in outcomes(done).values()]
    assert told == [("skipped", "needs a CUDA GPU")] * 2
    assert verify(prepared, "dies", "one.ten", gpu=None).returncode == 1


def test_every_patch_is_proven_on_the_device_or_by_the_tests() -> None:
    of_device = {id for id in by_id(sets.load()) if package.cases(id)}
    assert {id for id in of_device if not id.startswith("mlx.")} == {
        "mamba.gdn-prefill-graph",
        "mamba.mamba2-chunk-indices",
        "mamba.lightning-rows",
        "mla.page-table-bound",
        "swa.prefill-graph",
        "swa.window-metadata",
    }
    for id in by_id(sets.load()):
        assert needs_no_scheduler(id) <= (id in of_device), id
        assert all(case.what.endswith(".") for case in package.cases(id)), id
    parts = [case.module for case in package.cases("mamba.gdn-prefill-graph")]
    name = "mamba.gdn_prefill_graph"
    assert parts == [name, f"{name}_one", f"{name}_several"]
    files = Path(package.__file__).parent.glob("*/*.py")
    with_checks = [file for file in files if "CHECKS = {" in file.read_text("utf-8")]
    assert sum(len(package.cases(id)) for id in of_device) == len(of_device) + 2
    assert len(with_checks) == len(of_device) + 2


def test_progress_says_what_how_many_and_where(prepared: Throwaway) -> None:
    lines = verify(prepared, "lacks", "one").stderr.splitlines()
    assert [line.split()[:2] for line in lines] == [["[1/2]", "one.step"], ["[2/2]", "one.ten"]]


def test_seconds_are_those_of_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first patch of a set would have the import of sglang too."""
    clock = [0.0]
    monkeypatch.setenv("SGLANG_PERF_PATCHES", "none")
    monkeypatch.setattr(child, "logging", Mock())
    monkeypatch.setattr(child, "time", Mock(monotonic=lambda: clock[0]))

    def passing(seconds: float) -> int:
        clock[0] += seconds
        return 1

    def checks(_: str) -> dict[str, Check]:
        passing(30)
        return {"one": lambda _: passing(2)}

    lines = list(child.run(["mla.one"], checks, child.seeded))
    assert lines == [{"case": "mla.one", "compared": 1, "seconds": 2.0}]


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
    assert not runs(int(pid.read_text()))
