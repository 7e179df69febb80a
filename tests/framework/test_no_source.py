"""What ``list`` says of a tree that is hard to read is what a process on that tree does."""

import compileall
import json
import os
from pathlib import Path

import pytest
from throwaway import NO_SGLANG, REPOSITORY, Throwaway, change

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


def judged(
    throwaway: Throwaway, imported: str = "sglang.srt.a, sglang.srt.b"
) -> dict[str, list[str]]:
    """Id → word and reason by ``list``, which are those of a process."""
    known = Throwaway.write(throwaway.site.parent / "known")
    throwaway.put("sitecustomize.py", SETS.format(known=str(known.site)))
    listed = json.loads(throwaway.run(LIST).stdout)["patches"]
    done = throwaway.run(STATES.replace("{imported}", imported))
    states = json.loads(done.stdout)
    verdicts = {patch["id"]: [patch["verdict"], patch["reason"]] for patch in listed}
    assert states == {
        id: [word, reason] if word != "applies" else ["live", ""]
        for id, (word, reason) in verdicts.items()
    }
    for id, (word, _) in verdicts.items():
        assert done.stderr.count(f"{id} is refused") == (word == "refused")
    return verdicts


def words(found: dict[str, list[str]]) -> dict[str, str]:
    return {id: word for id, (word, _) in found.items()}


ALL_APPLY = dict.fromkeys(("one.step", "two.helper", "two.both", "two.call"), "applies")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252"])
def test_what_python_reads_applies(throwaway: Throwaway, encoding: str) -> None:
    path = throwaway.site / "sglang" / "srt" / "a.py"
    line = f"# -*- coding: {encoding} -*-\n" if not encoding.startswith("utf") else ""
    path.write_bytes((line + path.read_text() + NON_ASCII).encode(encoding))
    assert words(judged(throwaway)) == ALL_APPLY


def test_code_we_do_not_know_is_left_alone_and_said_once(throwaway: Throwaway) -> None:
    change(throwaway.site / "sglang")
    found = judged(throwaway)
    assert words(found) == {**ALL_APPLY, "one.step": "refused", "two.both": "refused"}
    assert "Worker.step" in found["one.step"][1]


def test_a_bad_file_leaves_the_other_patches(throwaway: Throwaway) -> None:
    """A module that a server never imports, so the process continues."""
    path = throwaway.site / "sglang" / "srt" / "b.py"
    before = path.read_text()
    path.write_bytes((before + NON_ASCII).encode("latin-1"))
    found = words(judged(throwaway, imported="sglang.srt.a"))
    assert found == {**ALL_APPLY, "two.both": "refused", "two.call": "refused"}


def test_a_tree_without_sources_is_refused(throwaway: Throwaway) -> None:
    package = throwaway.site / "sglang"
    assert compileall.compile_dir(package, legacy=True, quiet=2)
    for path in package.rglob("*.py"):
        path.unlink()
    found = judged(throwaway)
    assert words(found) == dict.fromkeys(ALL_APPLY, "refused")
    assert all(reason.startswith("no source: ") for _, reason in found.values())


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
    assert sentence == NO_SGLANG
