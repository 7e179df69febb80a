"""Verdicts on a tree, from its source alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from sglang_perf_patches.compat.source import Definition, Tree
from sglang_perf_patches.compat.verdict import judge, judge_each
from sglang_perf_patches.model.patch import Marker, Patch, PatchSet, Variant

ONE = "def f():\n    return 1\n\n\ndef g():\n    return 1\n"
TWO = "def f():\n    return 2\n\n\ndef g():\n    return 2\n"
F, G, H = "sglang.srt.m:f", "sglang.srt.m:g", "sglang.srt.m:h"

Known = dict[str, dict[str, tuple[str, ...]]]


def tree(folder: Path, text: str | None) -> Tree:
    (folder / "srt").mkdir(parents=True)
    (folder / "__init__.py").touch()
    if text is not None:
        (folder / "srt" / "m.py").write_text(text)
    return Tree(folder)


def sample(**more: object) -> Patch:
    variant = Variant(
        releases=("0.5.9", "0.5.10"), install="x:y", targets=(F,), adds=(H,), depends=(G,)
    )
    return Patch(**{"id": "a.b", "summary": "", "variants": (variant,), **more})  # type: ignore[arg-type]


def known(folder: Path) -> Known:
    """Release 0.5.9 is ONE, 0.5.10 is TWO."""
    digests: Known = {F: {}, G: {}}
    for release, text in (("0.5.9", ONE), ("0.5.10", TWO)):
        known_tree = tree(folder / f"known-{release}", text)
        for reference, hashes in digests.items():
            hashes[known_tree.definition(reference).digest] = (release,)
    return digests


COMMENTED = "# new\n" + ONE + "\n\ndef other():\n    pass\n"


@pytest.mark.parametrize(
    ("text", "release"), [(ONE, "0.5.9"), (TWO, "0.5.10"), (COMMENTED, "0.5.9")]
)
def test_applies_to_known_code(tmp_path: Path, text: str, release: str) -> None:
    patch = sample()
    verdict = judge(patch, known(tmp_path), tree(tmp_path / "t", text))
    assert (verdict.word, verdict.release) == ("applies", release)
    assert verdict.variant is patch.variants[0]
    assert set(verdict.definitions or ()) == {F, G}


REFUSED = {
    "a statement added": (ONE.replace("return 1", "print()\n    return 1", 1), (F,), "0.5.9"),
    "a changed dependency": (TWO.removesuffix("2\n") + "3\n", (G,), "0.5.10"),
    "pieces of two releases": (ONE.replace("return 1", "return 2", 1), (G,), "0.5.10"),
    "a missing definition": (ONE.partition("\n\n\n")[0] + "\n", (G,), "0.5.9"),
    "what we would add": (ONE + "\n\nh = 1\n", (H,), "0.5.9"),
}


@pytest.mark.parametrize("change", REFUSED)
def test_other_code_is_refused_and_named(tmp_path: Path, change: str) -> None:
    text, unknown, nearest = REFUSED[change]
    verdict = judge(sample(), known(tmp_path), tree(tmp_path / "t", text))
    assert (verdict.word, verdict.unknown) == ("refused", unknown)
    assert verdict.nearest == nearest
    assert verdict.unknown[0] in verdict.reason
    assert (f"{G} is missing" in verdict.reason) == ("missing" in change)


@pytest.mark.parametrize(("version", "nearest"), [("0.5.9", "0.5.9"), ("0.5.11", "0.5.10")])
def test_of_equally_near_releases_its_own_version_is_named_else_the_newest(
    tmp_path: Path, version: str, nearest: str
) -> None:
    changed = tree(tmp_path / "t", ONE.replace("1", "3"))
    (tmp_path / "t" / "_version.py").write_text(f'__version__ = "{version}"\n')
    verdict = judge(sample(), known(tmp_path), changed)
    assert (verdict.word, verdict.unknown) == ("refused", (F, G))
    assert verdict.nearest == nearest


ONLY_LATER = TWO + "\n\ndef later():\n    return 2\n"
LATER = "sglang.srt.m:later"


@pytest.mark.parametrize(
    ("text", "word", "unknown"),
    [
        (ONE, "applies", ()),
        (ONLY_LATER, "applies", ()),
        (TWO, "refused", (LATER,)),
        (ONE + "\n\ndef later():\n    return 2\n", "refused", (LATER,)),
        (ONLY_LATER.removesuffix("2\n") + "3\n", "refused", (LATER,)),
    ],
)
def test_it_relies_on_what_each_release_has_of_its_dependencies(
    tmp_path: Path, text: str, word: str, unknown: tuple[str, ...]
) -> None:
    """And where a release lacks one, the tree has to lack it too."""
    later = tree(tmp_path / "later", ONLY_LATER).definition(LATER)
    fingerprints = known(tmp_path) | {LATER: {later.digest: ("0.5.10",)}}
    variant = replace(sample().variants[0], depends=(G, LATER))
    verdict = judge(sample(variants=(variant,)), fingerprints, tree(tmp_path / "t", text))
    assert (verdict.word, verdict.unknown) == (word, unknown)
    if word == "applies":
        assert verdict.variant.depends == ((G,) if text == ONE else (G, LATER))
        assert set(verdict.definitions or ()) == {F, *verdict.variant.depends}


def test_a_dependency_without_any_fingerprint_is_not_overlooked(tmp_path: Path) -> None:
    variant = replace(sample().variants[0], depends=(G, LATER))
    there = tree(tmp_path / "t", ONE)
    verdict = judge(sample(variants=(variant,)), known(tmp_path), there)
    assert (verdict.word, verdict.unknown) == ("refused", (LATER,))
    assert judge(sample(), {}, there).word == "refused"


@pytest.mark.parametrize("text", [None, "x = 1\n"])
def test_absent(tmp_path: Path, text: str | None) -> None:
    verdict = judge(sample(absent_because="no such"), known(tmp_path), tree(tmp_path / "t", text))
    assert (verdict.word, verdict.reason) == ("absent", "no such")


@pytest.mark.parametrize(
    ("marker", "word"),
    [
        (Marker(definition=F), "built-in"),
        (Marker(definition=F, contains="return 1"), "built-in"),
        (Marker(definition=F, contains="return 2"), "applies"),
        (Marker(definition=H), "applies"),
    ],
)
def test_markers_win_over_fingerprints(tmp_path: Path, marker: Marker, word: str) -> None:
    patch = sample(markers=(marker,), built_in_since="0.5.10")
    verdict = judge(patch, known(tmp_path), tree(tmp_path / "t", ONE))
    assert verdict.word == word
    assert ("since 0.5.10" in verdict.reason) == (word == "built-in")


def test_a_patch_goes_with_what_it_requires(tmp_path: Path) -> None:
    needing = sample(id="a.c", requires=("a.b",), variants=sample().variants)
    broken = Variant(releases=("0.5.9",), install="x:y", targets=(F,), depends=(G, H))
    patches = (sample(variants=(broken,)), needing)
    verdicts = judge_each([PatchSet("a", "", patches, known(tmp_path))], tree(tmp_path / "t", ONE))
    assert [verdict.word for verdict in verdicts] == ["refused", "refused"]
    assert "needs a.b" in verdicts[1].reason


def test_a_file_that_can_not_be_parsed_refuses_its_patches_and_no_other(tmp_path: Path) -> None:
    fine = Patch(
        id="a.fine",
        variants=(Variant(releases=("0.5.9",), install="x:y", targets=("sglang.srt.n:f",)),),
        summary="",
    )
    broken = tree(tmp_path / "t", "def f(:\n")
    (broken.root / "srt" / "n.py").write_text(ONE)
    hashes = known(tmp_path)
    hashes["sglang.srt.n:f"] = hashes[F]
    verdicts = judge_each([PatchSet("a", "", (sample(), fine), hashes)], broken)
    assert [verdict.word for verdict in verdicts] == ["refused", "applies"]
    assert "m.py can't be parsed" in verdicts[0].reason


def test_only_what_is_asked_for_is_judged_and_what_it_needs(tmp_path: Path) -> None:
    needing = sample(id="a.c", requires=("a.b",))
    other = sample(id="a.d", variants=(Variant(releases=("0.5.9",), install="x:y", targets=(H,)),))
    sets = [PatchSet("a", "", (sample(), needing, other), known(tmp_path))]
    asked: list[str] = []

    class Watched(Tree):
        def definition(self, reference: str) -> Definition | None:
            asked.append(reference)
            return super().definition(reference)

    watched = Watched(tree(tmp_path / "t", TWO.replace("return 2", "return 3")).root)
    (verdict,) = judge_each(sets, watched, only={"a.c"})
    assert verdict.patch is needing
    assert verdict.reason.startswith("it needs a.b: ") or verdict.word == "refused"
    assert set(asked) == {F, G, H}
    asked.clear()
    assert judge_each(sets, watched, only={"a.d"})[0].word == "absent"
    assert set(asked) == {H}
