"""What ``list`` says of a tree that is hard to read is what a process on that tree does."""

from __future__ import annotations

import compileall
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from throwaway import REPOSITORY, Throwaway

SETS = """
import throwaway_patches as t
from sglang_perf_patches.compat import source
t.use(t.STEP, t.HELPER, t.BOTH, t.CALL, tree=source.Tree(source.find({known!r})))
"""
LIST = "from sglang_perf_patches.cli import main; main(['list', '--json'])"

STATES = """
import json, sglang_perf_patches as ours
ours.activate("all")
import {imported}
states = {s.id: [s.state, s.reason] for s in ours.activate().patches}
changing = [states[id][0] for id in ("one.step", "two.both")].count("live")
assert sglang.srt.a.Worker().step(1) == 2 + 100 * changing
print(json.dumps(states))
"""

NON_ASCII = "\n\nNAME = 'Köln'\n"

Both = tuple[dict[str, list[str]], dict[str, list[str]]]


@pytest.fixture
def both(throwaway: Throwaway) -> Callable[..., Both]:
    """``both()``: id → word and reason, by ``list`` and by a process."""
    known = Throwaway.write(throwaway.site.parent / "known")
    throwaway.put("sitecustomize.py", SETS.format(known=str(known.site)))

    def run(*, imported: str = "sglang.srt.a, sglang.srt.b", **variables: str) -> Both:
        listed = throwaway.run(LIST, **variables)
        done = throwaway.run(STATES.replace("{imported}", imported), **variables)
        verdicts = {
            patch["id"]: [patch["verdict"], patch["reason"]]
            for patch in json.loads(listed.stdout)["patches"]
        }
        return verdicts, json.loads(done.stdout)

    return run


def agree(found: Both) -> None:
    verdicts, states = found
    assert set(verdicts) == set(states)
    for id, (word, reason) in verdicts.items():
        if word == "applies":
            assert states[id][0] == "live", (id, states[id])
        else:
            assert states[id] == [word, reason], id


def words(found: Both) -> dict[str, str]:
    return {id: word for id, (word, _) in found[0].items()}


ALL_APPLY = dict.fromkeys(("one.step", "two.helper", "two.both", "two.call"), "applies")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252"])
def test_a_file_that_python_reads_applies(
    throwaway: Throwaway, both: Callable[..., Both], encoding: str
) -> None:
    path = throwaway.site / "sglang" / "srt" / "a.py"
    line = f"# -*- coding: {encoding} -*-\n" if not encoding.startswith("utf") else ""
    path.write_bytes((line + path.read_text() + NON_ASCII).encode(encoding))
    both_words = both()
    assert words(both_words) == ALL_APPLY
    agree(both_words)


def test_one_file_that_can_not_be_read_leaves_the_other_patches(
    throwaway: Throwaway, both: Callable[..., Both]
) -> None:
    """A module that a server never imports, so the process continues."""
    path = throwaway.site / "sglang" / "srt" / "b.py"
    before = path.read_text()
    path.write_bytes((before + NON_ASCII).encode("latin-1"))
    both_words = both(imported="sglang.srt.a")
    assert words(both_words) == {**ALL_APPLY, "two.both": "refused", "two.call": "refused"}
    agree(both_words)


def test_a_tree_without_sources_is_refused_and_never_absent(
    throwaway: Throwaway, both: Callable[..., Both]
) -> None:
    package = throwaway.site / "sglang"
    assert compileall.compile_dir(package, legacy=True, quiet=2)
    for path in package.rglob("*.py"):
        path.unlink()
    both_words = both()
    assert words(both_words) == dict.fromkeys(ALL_APPLY, "refused")
    assert all(reason.startswith("no source: ") for _, reason in both_words[0].values())
    agree(both_words)


def test_a_folder_of_another_kind_is_still_no_sglang(throwaway: Throwaway, tmp_path: Path) -> None:
    other = tmp_path / "other" / "sglang"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    done = throwaway.process(
        "import sys; from sglang_perf_patches.cli import main; sys.exit(main(['list']))",
        PYTHONPATH=os.pathsep.join([str(other.parent), str(REPOSITORY / "src")]),
    )
    assert done.returncode == 2
    assert "ready" not in done.stdout  # the catalogue, without a verdict
    sentence, _ = done.stderr.splitlines()
    assert (
        sentence
        == "sglang-perf-patches: sglang is not installed for this Python; use one that has it"
    )
