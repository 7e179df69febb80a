"""The page of what was tested on which release and machine: ``tests/benchmarks/results/tested.md``.

It is made from the measured sections of the committed results (see `pages`) and from the verdicts
on the released wheels. `tables` writes it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sglang_perf_patches.model import releases
from sglang_perf_patches.model.patch import Patch, PatchSet

from . import pages
from .pages import Section

Words = Mapping[str, Mapping[str, str]]
"""Patch id → release → verdict."""

PAGE = f"{pages.RESULTS}/tested.md"

_INTRODUCTION = f"""# What was tested, on which release and machine

`python3 -m tests.maintain.tables` writes this page from the committed results and from the verdicts
on the released wheels.

| a cell | means |
| --- | --- |
| a machine | the patch and stock ran there on this release, and the results are committed |
| · | the patch applies to this release (under "others": to another one), but there is no result |
| empty | the patch does not apply |

H200 is one NVIDIA H200; a 2 before it means two of one host. Nothing was measured on a Mac. The
known releases are sglang {releases.KNOWN[0]} … {releases.KNOWN[-1]};
[verdicts.md](../../releases/verdicts.md) lists which patch applies to which.

The test suite is not on this page: `python3 -m tests --all` compares patches with stock on the
released code of these releases, on a CPU, and commits no results. [Upstream's own unit
tests](upstream.md) have their own page.
"""


def page(root: Path, patch_sets: Sequence[PatchSet], words: Words) -> str:
    parts = [_INTRODUCTION]
    for patch_set in patch_sets:
        sections = pages.all_sections(root, patch_set.name)
        parts.append(f"## {patch_set.name}\n\n{_matrix(patch_set.patches, sections, words)}")
        parts.append(_sources(patch_set.patches, sections, words))
    return "\n".join(parts)


def unfounded(root: Path, patch_sets: Sequence[PatchSet]) -> list[str]:
    """Claims of measured sections that have no evidence.

    A section must name its machine, and patches or sets that exist. It may name only releases that
    its file names too.
    """
    wrong = []
    for patch_set in patch_sets:
        known = {patch_set.name, *(patch.id for patch in patch_set.patches)}
        for section in pages.all_sections(root, patch_set.name):
            where = f"{section.file}, {section.heading}"
            if not section.machine:
                wrong.append(f"{where}: it names no machine")
            wrong += [f"{where}: there is no {name}" for name in section.on if name not in known]
            told = _told(f"{section.heading} {pages.ROW_ID.sub('', section.text)}")
            wrong += [
                f"{where}: it says nothing of {release}"
                for on in section.on.values()
                for release in on
                if release not in told
            ]
    return wrong


def _told(text: str) -> set[str]:
    """The releases that a text names, also as ``0.5.19 to 0.5.23``."""
    words = [word.strip("`*|,.:;()").removesuffix("'s") for word in text.split()]
    versions = {word for word in words if word in releases.KNOWN}
    for first, to, last in zip(words, words[1:], words[2:], strict=False):
        if to == "to" and first in releases.KNOWN and last in releases.KNOWN:
            versions.update(releases.between(first, last))
    return versions


def _machines(patch: Patch, release: str, found: Sequence[Section], words: Words) -> list[str]:
    """Where a patch was measured on a release; nowhere if it does not apply there."""
    if words[patch.id].get(release, "applies") != "applies":
        return []
    names = (patch.id, patch.set)
    there = [each for each in found if any(release in each.on.get(name, ()) for name in names)]
    return list(dict.fromkeys(section.machine for section in there))


def _matrix(patches: Sequence[Patch], found: Sequence[Section], words: Words) -> str:
    """A row for each patch, a column for each release on which any of them was measured."""
    columns = [
        release
        for release in releases.KNOWN
        if any(_machines(patch, release, found, words) for patch in patches)
    ]
    rows = [["patch", *columns, "others"]]
    for patch in patches:
        cells = []
        for release in columns:
            empty = "·" if words[patch.id][release] == "applies" else ""
            cells.append(", ".join(_machines(patch, release, found, words)) or empty)
        applying = {release for release, word in words[patch.id].items() if word == "applies"}
        rows.append([f"`{patch.id}`", *cells, "·" if applying - {*columns} else ""])
    return pages.markdown(rows)


def _sources(patches: Sequence[Patch], found: Sequence[Section], words: Words) -> str:
    """A row for each measured section, and the patches that have none."""
    rows = [["results", "machine", "patches, releases"]]
    for section in found:
        what = []
        for name, on in section.on.items():
            judged = words.get(name)  # none of a set
            there = [each for each in on if judged is None or judged.get(each) == "applies"]
            what.append(" ".join([f"`{name}`", *there]))
        link = f"[{section.heading}]({Path(section.file).name})"
        rows.append([link, section.machine, "; ".join(what)])
    named = {name for section in found for name in section.on}
    without = [f"`{p.id}`" for p in patches if not {p.id, p.set} & named]
    text = pages.markdown(rows)
    if without:
        text += f"\nNo committed result: {', '.join(without)}.\n"
    return text
