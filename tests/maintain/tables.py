"""The documents that are made from the declarations and the released wheels.

``python3 -m tests.maintain.tables`` rewrites the marked blocks of the pages of gains, of all
patches and of every patch (see `pages`), the page of all gains (see `gains`),
``tests/releases/verdicts.md`` and the page of what was tested (see `tested`). ``--check`` only says
whether they are current.
"""

import argparse
import posixpath
import sys
from collections.abc import Callable, Sequence
from functools import partial

from sglang_perf_patches import downloads, sets
from sglang_perf_patches.compat import source
from sglang_perf_patches.compat.verdict import judge_each
from sglang_perf_patches.model import releases
from sglang_perf_patches.model.patch import PatchSet, by_id
from tests.benchmarks import gains
from tests.benchmarks.gains import Gain

from . import ROOT, badges, fingerprints, pages, symptoms, tested

PATCHES = "src/sglang_perf_patches/pages/patches.md"
"""The page that ``sglang-perf-patches help patches`` prints."""

Words = dict[str, dict[str, str]]
"""Patch id → release → verdict, releases oldest first."""


def judge_releases(patch_sets: Sequence[PatchSet]) -> Words:
    words: Words = {patch.id: {} for patch_set in patch_sets for patch in patch_set.patches}
    for release in releases.KNOWN:
        tree = source.at(downloads.tree(release))
        for verdict in judge_each(patch_sets, tree):
            words[verdict.patch.id][release] = verdict.word
    return words


def verdict_page(patch_sets: Sequence[PatchSet], words: Words) -> str:
    """One table a set: a row for each release, a column for each patch."""
    parts = ["# The verdict on every release\n"]
    parts.append(
        "Written by `python3 -m tests.maintain.tables`, compared by "
        "`tests/releases/test_verdicts.py`. Review every change of it.\n"
    )
    for patch_set in patch_sets:
        ids = [patch.id for patch in patch_set.patches]
        if ids:
            rows = [["release", *(id.partition(".")[2] for id in ids)]]
            rows += [[release, *(words[id][release] for id in ids)] for release in releases.KNOWN]
            parts.append(f"## {patch_set.name}\n\n{pages.markdown(rows)}")
    return "\n".join(parts)


def release_table(patch_sets: Sequence[PatchSet], words: Words, measured: Sequence[Gain]) -> str:
    """One row a patch, with the releases on which it applies; its page has the others.

    Patches that `measured` shows to gain come first, the largest gain on top. The other exact ones
    follow, then the opt-in ones, each group in declared order.
    """
    best: dict[str, float] = {}
    for gain in measured:
        if gain.is_a_gain:
            for patch_id in gain.patches:
                best[patch_id] = min(gain.ratio, best.get(patch_id, gain.ratio))
    patches = sorted(
        by_id(patch_sets).values(), key=lambda patch: (best.get(patch.id, 1), not patch.is_default)
    )
    rows = [["patch", "what it does", "releases"]]
    for patch in patches:
        applies = fingerprints.as_spans(
            release for release, word in words[patch.id].items() if word == "applies"
        )
        built = [name for variant in patch.variants for name in variant.releases]
        if not set(built) <= set(releases.KNOWN):
            applies = ", ".join(filter(None, ["source builds", applies]))
        opt_in = "" if patch.is_default else " (opt-in)"
        page = posixpath.relpath(pages.file(patch.id), posixpath.dirname(PATCHES))
        link = f"[`{patch.id}`]({page}){opt_in}"
        rows.append([link, patch.summary, applies or "-"])
    return pages.markdown(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command on this checkout; 0 fine, 1 not current under ``--check``."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.maintain.tables")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if not current")
    options = parser.parse_args(arguments)
    patch_sets = sets.load()
    words = judge_releases(patch_sets)
    measured = gains.read(ROOT)
    page_of = {patch.id: pages.file(patch.id) for patch in by_id(patch_sets).values()}
    makers: dict[str, Callable[[str], str]] = {
        gains.FACE: lambda text: pages.replace_block(text, "gains", gains.table(measured, ROOT)),
        PATCHES: lambda text: pages.replace_block(
            text, "releases", release_table(patch_sets, words, measured)
        ),
        badges.PICTURE: lambda _: badges.picture(ROOT),
        gains.PAGE: lambda _: gains.page(measured, page_of),
        "tests/releases/verdicts.md": lambda _: verdict_page(patch_sets, words),
        tested.PAGE: lambda _: tested.page(ROOT, patch_sets, words),
        symptoms.PAGE: symptoms.page,
    }
    for patch in by_id(patch_sets).values():
        makers[pages.file(patch.id)] = partial(pages.page, patch=patch, words=words[patch.id])
    stale = False
    for name, make in makers.items():
        path = ROOT / name
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        after = make(before)
        if before != after:
            stale = True
            print(f"{name} {'is not current' if options.check else 'is written'}")
            if not options.check:
                path.write_text(after, encoding="utf-8")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
