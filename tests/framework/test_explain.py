"""``explain``: what it prints about a patch and a set, and the difference behind a refusal."""

import json
import re
from pathlib import Path

import pytest
from throwaway import Throwaway, change, know

from sglang_perf_patches import sets
from sglang_perf_patches.cli import main
from sglang_perf_patches.model.releases import KNOWN


def test_explain(throwaway: Throwaway, tree: Path) -> None:
    brief = throwaway.command("explain", "two.both").stdout
    assert "Why:" not in brief  # it has no page
    assert "What it changes" not in brief
    assert brief.endswith("add --all\n")
    text = throwaway.command("explain", "two.both", "--all").stdout
    assert "What it changes:\n  sglang.srt.a:Worker.step\n" in text
    assert "\n  sglang.srt.a:Worker.extra\n" in text
    assert "\nWhat it relies on:\n  sglang.srt.a:Worker\n" in text
    assert (
        "Chosen by SGLANG_PERF_PATCHES=all. To turn it off: SGLANG_PERF_PATCHES=all,-two.both\n"
        in text
    )
    policy = throwaway.command("explain", "two.policy").stdout
    assert (
        "Not chosen by SGLANG_PERF_PATCHES=all: an opt-in patch needs its full name. "
        "To turn it on: SGLANG_PERF_PATCHES=all,two.policy\n"
    ) in policy
    for selection in ("none", ""):
        off = throwaway.command("explain", "one.step", SGLANG_PERF_PATCHES=selection).stdout
        assert "To turn it on: SGLANG_PERF_PATCHES=one.step\n" in off
    built = throwaway.command("explain", "two.built").stdout
    assert "https://github.com/sgl-project/sglang/pull/1" in built
    data = json.loads(throwaway.command("explain", "two.both", "--json").stdout)
    assert (data["id"], data["why"], data["differences"]) == ("two.both", "", [])
    assert data["targets"][0] == "sglang.srt.a:Worker.step"
    assert data["targets"][-1] == "sglang.srt.a:Worker.extra"
    assert len(data["depends"]) == 1


def test_explain_says_how_what_a_patch_needs_fares(throwaway: Throwaway, tree: Path) -> None:
    needing = "replace(t.BOTH, requires=('two.built', 'two.gone'))"
    throwaway.append("sitecustomize.py", f"t.use({needing}, gone, built, tree=first)\n")
    text = throwaway.command("explain", "two.both").stdout
    assert "Needs: two.built (built-in here), two.gone (absent here)\n" in text


def test_explain_says_what_leaves_a_patch_on_by_flags(throwaway: Throwaway, tree: Path) -> None:
    step = "replace(t.STEP, proven_with={'tracked-states': 'x', 'cpu': 'x'})"
    throwaway.append("sitecustomize.py", f"t.use({step})\n")
    brief = " ".join(throwaway.command("explain", "one.step").stdout.split())
    assert "It works with 1 GPU; off with TP, MTP, EP, DP attention, hierarchical cache." in brief
    assert "Every other feature" not in brief
    text = " ".join(throwaway.command("explain", "one.step", "--all").stdout.split())
    assert "Every other feature turns the patch off." in text
    assert (
        "- tracked-states: states are tracked in extra buffers "
        "(--mamba-scheduler-strategy extra_buffer or --mamba-radix-cache-strategy extra_buffer)"
    ) in text
    assert "- cpu: this server runs on a CPU with sglang's CPU kernels Needs" not in text
    assert "tensor-parallel" not in text


def test_explain_of_a_set_lists_it(throwaway: Throwaway, tree: Path) -> None:
    done = throwaway.command("explain", "two")
    assert done.stdout.splitlines()[:3] == ["on sglang 1.0", "", "two: two"]
    assert re.findall(r"  (two\.\w+):", done.stdout) == ["two.helper", "two.both", "two.policy"]
    assert "absent: two.gone\nbuilt-in: two.built\n" in done.stdout
    shown = re.findall(r"  (two\.\w+):", throwaway.command("explain", "two", "--all").stdout)
    assert shown == ["two.helper", "two.both", "two.policy", "two.gone", "two.built"]
    data = json.loads(throwaway.command("explain", "two", "--json").stdout)
    assert [patch["id"] for patch in data["patches"]] == shown


def test_explain_where_nothing_can_be_kept(throwaway: Throwaway, tree: Path) -> None:
    """A HOME that takes no file: the command can't make the difference, but shows all else."""
    change(tree)
    home = throwaway.put("home", "a file, so that root can't write there either")
    done = throwaway.command(
        "explain", "one.step", HOME=str(home), XDG_CACHE_HOME=None, PIP_NO_INDEX="1"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "no copy of 1.0 to compare with" in done.stdout


def test_explain_shows_the_difference_of_a_refusal(throwaway: Throwaway, tree: Path) -> None:
    change(tree)
    known = throwaway.site.parent / "cache" / "sglang-perf-patches" / "releases" / "1.0"
    known.parent.mkdir(parents=True)
    (throwaway.site.parent / "first" / "site").rename(known)
    know(throwaway, known)
    done = throwaway.command("explain", "one.step", SGLANG_PERF_PATCHES="one")
    assert done.returncode == 1
    assert "-    return x + 1" in done.stdout
    assert "+    return 1 + x" in done.stdout


def test_a_set_is_short_on_the_newest_release(capsys: pytest.CaptureFixture[str]) -> None:
    """It fits a screen; the lists of features and of code need ``--all``."""
    for name in sets.NAMES:
        assert main(["explain", name, "--sglang-version", KNOWN[-1]]) == 0
        shown = capsys.readouterr().out
        assert shown.count("\n") <= 40, name
        assert f"{name}: " in shown
