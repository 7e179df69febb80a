"""The command: the forms of ``list``, exit codes, and one sentence for bad input."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from throwaway import NO_SGLANG, Throwaway, change

from sglang_perf_patches import __version__
from sglang_perf_patches.cli import main


def test_json_has_the_designed_form(throwaway: Throwaway, tree: Path) -> None:
    done = throwaway.command("list", "--json")
    data = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert data["sglang"] == {"version": "1.0", "path": str(tree)}
    assert data["selection"] == "all"
    by_id = {patch["id"]: patch for patch in data["patches"]}
    assert by_id["one.step"] == {
        "id": "one.step",
        "set": "one",
        "kind": "exact",
        "selected": True,
        "verdict": "applies",
        "reason": "this is the code of 1.0, on which the patch was proven",
        "upstream": [],
        "built_in_since": None,
        "targets": ["sglang.srt.a:Worker.step"],
        "proven_with": None,
        "short": None,
        "here": "ready",
    }
    assert by_id["two.both"]["targets"][-1] == "sglang.srt.a:Worker.extra"
    assert (by_id["two.policy"]["kind"], by_id["two.policy"]["selected"]) == ("policy", False)
    assert by_id["two.gone"]["verdict"] == "absent"
    built = by_id["two.built"]
    assert (built["verdict"], built["upstream"]) == ("built-in", ["sgl-project/sglang#1"])
    assert built["built_in_since"] == "1.0"


@pytest.mark.parametrize("words", [(), ("list",), ("--list",), ("list", "--list")])
def test_list_is_the_default(throwaway: Throwaway, tree: Path, words: tuple[str, ...]) -> None:
    done = throwaway.command(*words)
    assert done.returncode == 0
    assert done.stdout == throwaway.command("list").stdout
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "3 ready, 0 refused, 1 off, 1 built-in, 1 absent",
        *("on sglang 1.0, with SGLANG_PERF_PATCHES=all", f"at {tree}"),
    ]
    assert lines[4:15] == [
        *("one: one", "  one.step: ready", "", "two: two", "  two.helper: ready"),
        *("  two.both: ready", "  two.policy: off (opt-in)", ""),
        *("absent: two.gone", "built-in: two.built"),
        "Why these have nothing to do here: sglang-perf-patches list --all",
    ]
    assert "`ready`: the patch knows this code. It goes live in" in done.stdout
    assert "sglang-perf-patches run" in lines[-1]  # a tree without a plugin loader
    assert max(map(len, lines[3:-1])) <= 80


def test_a_patch_that_was_named_is_always_shown(throwaway: Throwaway, tree: Path) -> None:
    shown = throwaway.command("list", SGLANG_PERF_PATCHES="two.built,two.gone").stdout
    assert "  two.built: built-in\n" in shown
    assert "  two.gone: absent\n" in shown
    assert "nothing to do here" not in shown


GAINS = """
from sglang_perf_patches import patch_page
of = {"one.step": ("2 ms → 1 ms (1.0, H200)", "none known"), "two.helper": ("0.9 (0.9, H200)", "1"),
    "two.both": ("4 ms → 1 ms a step (1.0, H200)", "memory")}
patch_page.read = lambda id: patch_page.Page(
    headlines=(patch_page.Headline("it", *of[id]),) if id in of else ())
"""


def test_the_largest_gain_is_first_with_its_release(throwaway: Throwaway, tree: Path) -> None:
    helper = "replace(t.HELPER, proven_with={'tensor-parallel': 'x', 'eagle': 'x'})"
    throwaway.append("sitecustomize.py", f"t.use(t.STEP, {helper}, t.BOTH, t.POLICY)\n{GAINS}")
    lines = throwaway.command("list").stdout.splitlines()
    assert lines[4:12] == [
        *("one: one", "  one.step: ready, if you use it", "      2 ms → 1 ms (1.0, H200)", ""),
        *("two: two", "  two.both: ready, if you use it", "      4 ms → 1 ms a step (1.0, H200)"),
        "      costs: memory",
    ]
    assert lines[12:15] == [
        *("  two.helper: ready, if you use it", "      0.9 (0.9, H200; not measured on 1.0)"),
        "      costs: 1",
    ]
    works = [
        line for line in throwaway.command("list", "--all").stdout.splitlines() if "off w" in line
    ]
    assert works == [
        "      works with 1 GPU, TP, MTP; off with EP, DP attention, hierarchical cache"
    ]


def test_list_all_has_every_patch_and_its_links(throwaway: Throwaway, tree: Path) -> None:
    lines = throwaway.command("list", "--all").stdout.splitlines()
    at = lines.index("  two.built: built-in")
    assert lines[at + 2 : at + 4] == ["      upstream has it since 1.0", "      upstream: #1"]
    assert "  two.gone: absent" in lines
    assert sum(line.startswith(("  one.", "  two.")) for line in lines) == 6
    assert not any("--all" in line for line in lines)


def test_what_this_machine_lacks_is_said(throwaway: Throwaway) -> None:
    throwaway.put(
        "sitecustomize.py",
        "import throwaway_patches as t\n"
        "from dataclasses import replace\n"
        "t.use(replace(t.STEP, id='mlx.step'), replace(t.TEN, id='swa.ten'))\n"
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'mlx' else find(name, *more)\n",
    )
    here = throwaway.command("list").stdout
    assert here.splitlines()[0] == "1 ready, 0 refused, 1 need what this machine lacks"
    assert "\nneeds mlx: mlx.step\n" in here
    assert "\n  mlx.step: needs mlx\n" in throwaway.command("list", "--all").stdout
    elsewhere = throwaway.command("--sglang-path", str(throwaway.site)).stdout
    assert elsewhere.splitlines()[0] == "2 ready, 0 refused"
    # What this machine lacks is only named, chosen or not.
    others = throwaway.command("list", SGLANG_PERF_PATCHES="swa").stdout
    assert others.splitlines()[0] == "1 ready, 0 refused, 1 need what this machine lacks"
    assert "\nneeds mlx: mlx.step\n" in others
    named = throwaway.command("list", SGLANG_PERF_PATCHES="mlx").stdout
    assert "\n  mlx.step: needs mlx\n" in named
    whole = throwaway.command("list", "--all", SGLANG_PERF_PATCHES="swa").stdout
    assert "      not chosen; summary" in whole.partition("\n  mlx.step: needs mlx\n")[2]


@pytest.mark.parametrize(
    ("selection", "before", "after"),
    [
        *(("all", 0, 0), ("one", 0, 1), ("one.step", 0, 1), ("two", 0, 1), ("two.gone", 1, 1)),
        *(("two.helper", 0, 0), ("two.built", 0, 0)),
    ],
)
def test_exit_code_before_and_after_a_change(
    throwaway: Throwaway, tree: Path, selection: str, before: int, after: int
) -> None:
    """A built-in patch, and an absent one of a set that was named, are no failure."""
    words = ("list", "--json")
    assert throwaway.command(*words, SGLANG_PERF_PATCHES=selection).returncode == before
    change(tree)
    done = throwaway.command(*words, SGLANG_PERF_PATCHES=selection)
    assert done.returncode == after
    step = json.loads(done.stdout)["patches"][0]
    assert step["verdict"] == "refused"
    assert "sglang.srt.a:Worker.step is not the code we know" in step["reason"]


def test_plugins_variable_that_leaves_us_out_is_told(throwaway: Throwaway, tree: Path) -> None:
    throwaway.put("sglang/srt/plugins/__init__.py", "")
    assert "SGLANG_PLUGINS" not in throwaway.command().stdout
    assert "SGLANG_PLUGINS" not in throwaway.command(SGLANG_PLUGINS="x, perf_patches").stdout
    assert "SGLANG_PLUGINS does not name" in throwaway.command(SGLANG_PLUGINS="other").stdout


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        (("list",), {"SGLANG_PERF_PATCHES": "one,tow"}, "did you mean two"),
        (("list",), {"SGLANG_PERF_PATCHES": "ALL"}, "did you mean all"),
        (("explain", "two.bth"), {}, "did you mean two.both"),
        (("bench", "mlx"), {}, "choose from 'server'"),
        (("verify", "none"), {}, "names no patch to verify"),
        (("list", "--sglang-path", "missing"), {}, "not a sglang tree"),
        (("doctor", "--sglang-path", "/nowhere"), {}, "not a sglang tree"),
        (("doctor", "--sglang-version", "../x"), {}, "'../x' is not a version of sglang"),
        (("doctor", "--sglang-version", "two"), {}, "'two' is not a version of sglang"),
        (("doctor", "--sglang-path", "/x", "--sglang-version", "2.0"), {}, "not allowed with"),
    ],
)
def test_bad_input_is_one_sentence(
    throwaway: Throwaway, tree: Path, words: tuple[str, ...], variables: dict[str, str], said: str
) -> None:
    done = throwaway.command(*words, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    usage = ("usage: ", "       ")
    (line,) = (each for each in done.stderr.splitlines() if not each.startswith(usage))
    assert said in line


@pytest.mark.parametrize("damage", [b"return (x", b"\xff\xfe\x00", None])
def test_a_damaged_file_refuses_its_patches(
    throwaway: Throwaway, tree: Path, damage: bytes | None
) -> None:
    path = tree / "srt" / "a.py"
    if damage:
        path.write_bytes(path.read_bytes().partition(b"return x + 1")[0] + damage)
    else:
        path.unlink()
        path.symlink_to("/proc/self/mem")  # no permission bit would stop root
    done = throwaway.command("list", SGLANG_PERF_PATCHES="one.step")
    assert (done.returncode, done.stderr) == (1, "")
    assert re.search("one.step is refused: .*a.py can't be", " ".join(done.stdout.split()))


@pytest.mark.parametrize(
    "words",
    [
        *(("frobnicate",), ("explain",), ("run",), ("bench",), ("bench", "server")),
        *((verb, "--frobnicate") for verb in ("list", "explain", "status", "doctor", "verify")),
        ("bench", "--frobnicate"),
    ],
)
def test_a_usage_error_shows_its_verb_s_usage(throwaway: Throwaway, words: tuple[str, ...]) -> None:
    done = throwaway.command(*words)
    assert done.returncode == 2
    verb = "" if words == ("frobnicate",) else f"{words[0]} "
    assert done.stderr.startswith(f"usage: sglang-perf-patches {verb}")


def test_no_sglang(throwaway: Throwaway) -> None:
    src = throwaway.environment()["PYTHONPATH"].split(os.pathsep)[1]
    done = throwaway.command(PYTHONPATH=src)
    sentence, hint = done.stderr.splitlines()
    assert sentence == NO_SGLANG
    assert "--sglang-version" in hint
    assert "help patches" in hint
    assert (done.returncode, done.stdout) == (2, "")
    alone = throwaway.command("explain", "mlx.kv-arena", PYTHONPATH=src)
    assert (alone.returncode, alone.stderr) == (2, f"{sentence}\n")
    assert alone.stdout.startswith("mlx.kv-arena (exact): ")
    for part in ("Use it if:", "Gain:", "Cost:", "Why:", "How:"):
        assert f"\n{part}\n" in alone.stdout
    of_set = throwaway.command("explain", "mlx", PYTHONPATH=src)
    assert of_set.returncode == 2
    assert "mlx.last-row (exact): " in of_set.stdout
    for words in ("--json", "doctor"):
        done = throwaway.command(words, PYTHONPATH=src)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{sentence}\n")


def test_a_release_that_is_too_old_is_one_sentence(throwaway: Throwaway) -> None:
    throwaway.put("sglang/version.py", '__version__ = "0.5.8"\n')
    said = "sglang-perf-patches: sglang 0.5.8 is not supported: the patches are for 0.5.9 … "
    for words in ((), ("doctor",), ("list", "--sglang-version", "0.5.8"), ("explain", "mlx")):
        done = throwaway.command(*words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert done.stderr.startswith(said)
        assert done.stderr.count("\n") == 1


def test_version(throwaway: Throwaway) -> None:
    assert throwaway.command("--version").stdout == f"sglang-perf-patches {__version__}\n"


def test_a_reader_that_leaves_early(throwaway: Throwaway, tree: Path) -> None:
    going, coming = os.pipe()
    os.close(going)
    command = [sys.executable, "-m", "sglang_perf_patches", "list"]
    env = throwaway.environment()
    done = subprocess.run(command, env=env, stdout=coming, stderr=subprocess.PIPE, text=True)
    os.close(coming)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("release", "has_it"), [("0.5.11", False), ("0.5.23", True)])
def test_works_with_is_that_of_the_release(
    release: str, has_it: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """slot-exhaustion was tested with the hierarchical cache from 0.5.17 on."""
    patch, feature = "mamba.slot-exhaustion", "hierarchical-cache"

    def said(*words: str) -> str:
        main([*words, "--sglang-version", release])
        return capsys.readouterr().out

    entry = " ".join(said("list", "--all").partition(f"{patch}: ")[2].split())
    works, _, off = entry.partition("works with ")[2].partition("; off with ")
    assert ("hierarchical cache" in works.partition(" swa: ")[0]) == has_it
    assert off.startswith("MTP, hierarchical cache") != has_it
    assert (f"{feature}: " in said("explain", patch, "--all")) == has_it
    listed = {each["id"]: each for each in json.loads(said("list", "--json"))["patches"]}
    for told in (listed[patch], json.loads(said("explain", patch, "--json"))):
        assert "tensor-parallel" in told["proven_with"]
        assert (feature in told["proven_with"]) == has_it
