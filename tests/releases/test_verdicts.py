"""Verdicts on every released sglang, from the real wheels."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tiers
from linux_mlx.patience import limit_s
from sglang_perf_patches import downloads, sets
from sglang_perf_patches.compat import source
from sglang_perf_patches.compat.verdict import Verdict, as_in, judge, judge_each
from sglang_perf_patches.model import releases
from sglang_perf_patches.model.patch import Patch, PatchSet, Variant, module_of
from tests.maintain import fingerprints, tables

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).parent / "verdicts.md"
MOST_PARSED = 10
"""Files. Declarations may have changed since ``tests.maintain.fingerprints`` wrote the table."""


def expected() -> dict[str, dict[str, str]]:
    words: dict[str, dict[str, str]] = {}
    name, head = "", []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("## "):
            name, head = line[3:], []
        elif line.startswith("| release"):
            head = [f"{name}.{cell}" for cell in cells[1:]]
        elif line.startswith("| ") and head:
            for id, word in zip(head, cells[1:], strict=True):
                words.setdefault(id, {})[cells[0]] = word
    return words


def tree(release: str) -> source.Tree:
    """With what the package brings of its files, which the test of `MOST_PARSED` compares."""
    return source.at(downloads.tree(release))


@cache
def judged(release: str) -> tuple[Verdict, ...]:
    return tuple(judge_each(sets.load(), tree(release)))


@pytest.mark.parametrize("release", releases.KNOWN)
def test_every_release_is_judged_as_the_table_says(release: str) -> None:
    by_patch = {verdict.patch.id: verdict.word for verdict in judged(release)}
    assert by_patch == {id: words[release] for id, words in expected().items()}
    assert "refused" not in by_patch.values()


def test_built_in_since_is_the_first_release_that_has_it() -> None:
    """And the newest has it too; what a release had and later ones dropped is said in words."""
    table = expected()
    for patch_set in sets.load():
        for patch in patch_set.patches:
            having = [release for release, word in table[patch.id].items() if word == "built-in"]
            if patch.built_in_since:
                since = releases.between(patch.built_in_since, releases.KNOWN[-1])
                assert having == list(since), patch.id
            else:
                assert set(having) <= set(patch.upstream_note.replace(",", " ").split()), patch.id
                assert releases.KNOWN[-1] not in having, patch.id


@pytest.mark.parametrize("release", releases.KNOWN)
def test_the_variants_that_name_a_release_are_used_there(release: str) -> None:
    known = {patch.id: each.known for each in sets.load() for patch in each.patches}
    for verdict in judged(release):
        id = verdict.patch.id
        for variant in verdict.patch.variants:
            if release in variant.releases:
                assert verdict.variant == as_in(variant, release, known[id]), id


@pytest.mark.parametrize("name", sets.NAMES)
def test_fingerprints_are_those_of_the_wheels(name: str) -> None:
    patch_set = sets.declared(name)
    assert fingerprints.take(patch_set) == patch_set.known
    written = ROOT / "src" / "sglang_perf_patches" / "sets" / name / "known.json"
    assert written.read_text(encoding="utf-8") == fingerprints.render(
        {ref: dict(hashes) for ref, hashes in patch_set.known.items()}
    )


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ({"depends": ("sglang.srt.utils:nowhere",)}, "0.5.9 … 0.5.10"),
        ({"targets": ("sglang.srt.hardware_backend.mlx.model_runner:MlxModelRunner",)}, "0.5.9"),
    ],
)
def test_an_unknown_reference_is_an_error(names: dict[str, tuple[str, ...]], missing: str) -> None:
    """And so is a target that one of its releases lacks."""
    variant = Variant(releases=("0.5.9", "0.5.10"), install="x:y", **{"targets": (), **names})
    patch_set = PatchSet("mla", "", (Patch(id="mla.x", summary="", variants=(variant,)),))
    with pytest.raises(fingerprints.DeclarationError, match=f"is not in {re.escape(missing)}$"):
        fingerprints.take(patch_set)


def test_the_tables_of_the_documents_are_current() -> None:
    assert tables.main(["--check"]) == 0


def test_the_command_judges_all_trees_without_importing_them() -> None:
    script = """
import contextlib, io, json, sys
from sglang_perf_patches.cli import main
found = {}
for path in sys.argv[1:]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["list", "--json", "--sglang-path", path])
    assert code == 0
    found[path] = json.loads(out.getvalue())
assert not {name.partition(".")[0] for name in sys.modules} & {"sglang", "torch", "mlx", "wrapt"}
print(json.dumps(found))
"""
    paths = {str(downloads.tree(release)): release for release in releases.KNOWN}
    done = subprocess.run(
        [sys.executable, "-c", script, *paths], capture_output=True, text=True, timeout=limit_s()
    )
    assert done.returncode == 0, done.stderr
    table = expected()
    for path, data in json.loads(done.stdout).items():
        assert data["sglang"]["version"] == paths[path]
        assert {patch["id"]: patch["verdict"] for patch in data["patches"]} == {
            id: words[paths[path]] for id, words in table.items()
        }


def applying(*, whole: bool) -> Iterator[tuple[PatchSet, Verdict]]:
    """Verdicts on the newest release, or on one release for all that each patch relies on."""
    for patch_set in sets.load():
        for patch in patch_set.patches:
            newest = {
                (variant.install, as_in(variant, release, patch_set.known).depends): release
                for variant in (patch.variants if whole else patch.variants[-1:])
                for release in variant.releases
                if release in releases.KNOWN
            }
            for release in newest.values():
                if not whole and release != releases.KNOWN[-1]:
                    continue
                yield patch_set, judge(patch, patch_set.known, tree(release))


def test_statements_count_and_comments_do_not(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """In each definition; in the default tier in one of each patch of the newest release."""
    whole_matrix = tiers.is_whole(pytestconfig)
    by_release: dict[str, list[tuple[int, PatchSet, Verdict]]] = {}
    for number, (patch_set, verdict) in enumerate(applying(whole=whole_matrix)):
        assert verdict.definitions
        assert verdict.release
        by_release.setdefault(verdict.release, []).append((number, patch_set, verdict))
    assert by_release
    for release, judged_there in by_release.items():
        original = source.find(downloads.tree(release))
        copy = tmp_path / release / "sglang"
        (copy / "srt").mkdir(parents=True)
        whole = source.at(original)  # what was read of it is kept; of the copies nothing is
        for _, patch_set, verdict in judged_there:
            judge(verdict.patch, patch_set.known, whole)
        files = {path for path in whole._paths.values() if path}
        for path in [original / "__init__.py", original / "_version.py", *files]:
            there = copy / path.relative_to(original)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, there)
        texts = {path: path.read_text(encoding="utf-8") for path in copy.rglob("*.py")}
        for there, text in texts.items():
            there.write_text("# a comment elsewhere\n" + text + "\n# and here\n", encoding="utf-8")
        commented = source.Tree(copy)
        for _, patch_set, verdict in judged_there:
            again = judge(verdict.patch, patch_set.known, commented)
            assert again.word == "applies", (verdict.patch.id, again.reason)
        for there, text in texts.items():
            there.write_text(text, encoding="utf-8")
        restored = source.Tree(copy)
        for number, patch_set, verdict in judged_there:
            assert judge(verdict.patch, patch_set.known, restored).word == "applies"
            definitions = list((verdict.definitions or {}).items())
            if not whole_matrix:
                definitions = [definitions[number % len(definitions)]]
            for reference, definition in definitions:
                there = copy / definition.path.relative_to(original)
                lines = texts[there].split("\n")
                lines[definition.lines[-1][1] - 1] += "; pass"
                there.write_text("\n".join(lines), encoding="utf-8")
                changed_tree = source.Tree(copy)  # the other files are parsed already
                changed_tree._modules = {
                    module: parsed
                    for module, parsed in restored._modules.items()
                    if module != module_of(reference)
                }
                changed = judge(verdict.patch, patch_set.known, changed_tree)
                assert changed.word in {"refused", "built-in"}, reference
                if changed.word == "refused":
                    assert reference in changed.unknown, (reference, changed.reason)
                there.write_text(texts[there], encoding="utf-8")


@pytest.mark.sampled
@pytest.mark.parametrize("release", releases.KNOWN)
def test_a_release_is_judged_the_same_and_hardly_parsed(release: str) -> None:
    root = source.find(downloads.tree(release))
    fast, slow = source.Tree(root), source.Tree(root, table=dict)
    verdicts = judge_each(sets.load(), fast)
    assert len(fast._modules) <= MOST_PARSED
    assert len(fast._definitions) > 100
    for reference, definition in fast._definitions.items():
        assert definition == slow.definition(reference), reference
    assert [(each.word, each.release) for each in verdicts] == [
        (each.word, each.release) for each in judge_each(sets.load(), slow)
    ]
