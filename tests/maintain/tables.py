"""The documents that are made from the declarations and the released wheels.

``python3 -m tests.maintain.tables`` rewrites the marked blocks of the pages of gains, of all
patches and of every patch (see `pages`), the page of all gains (see `gains`),
``tests/releases/verdicts.md`` and the page of what was tested (see `tested`). ``--check`` only says
whether they are current.
"""

import argparse
import posixpath
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from xml.sax.saxutils import escape

from sglang_perf_patches import __version__, downloads, sets
from sglang_perf_patches.compat import source
from sglang_perf_patches.compat.verdict import judge_each
from sglang_perf_patches.faults.fault import Fault
from sglang_perf_patches.faults.known import FAULTS
from sglang_perf_patches.model import releases
from sglang_perf_patches.model.patch import PatchSet, by_id
from tests.benchmarks import gains
from tests.benchmarks.gains import Gain

from . import ROOT, fingerprints, pages, tested

BADGES = "examples/badges.svg"
SYMPTOMS = "src/sglang_perf_patches/pages/symptoms.md"
PATCHES = "src/sglang_perf_patches/pages/patches.md"
"""The page that ``sglang-perf-patches help patches`` prints."""

Words = dict[str, dict[str, str]]
"""Patch id → release → verdict, releases oldest first."""

_PATCH = re.compile(r"(?<!`)(`?)\b((?:mlx|mla|mamba|swa)\.[a-z][a-z0-9-]*)\1")
_NUMBER = re.compile(r"#(\d+)")
_THREAD = "https://github.com/sgl-project/sglang/issues/"
_HEIGHT, _CHARACTER, _GAP = 20, 7, 6  # of the badges


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
        link = f"[`{patch.id}`]({_page_of(patch.id, PATCHES)}){opt_in}"
        rows.append([link, patch.summary, applies or "-"])
    return pages.markdown(rows)


def badges(root: Path) -> dict[str, str]:
    """Name → value of the README's badges, from what the package declares."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    project = dict(re.findall(r'^([\w-]+) = "(.*)"$', text, re.MULTILINE))
    return {
        "version": __version__,
        "Python": project["requires-python"],
        "sglang": f"{releases.KNOWN[0]}{releases.TO}{releases.KNOWN[-1]}",
        "licence": project["license"],
    }


def label_of(told: dict[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in told.items())


def picture(told: dict[str, str]) -> str:
    """Badges as one SVG, side by side, true without a network."""
    parts, x = [], 0
    for name, value in told.items():
        for text, colour in ((name, "#444c56"), (value, "#0072b2")):
            width = _CHARACTER * len(text) + 12
            parts.append(f'<rect x="{x}" width="{width}" height="{_HEIGHT}" fill="{colour}"/>')
            parts.append(f'<text x="{x + width / 2:g}" y="14">{escape(text)}</text>')
            x += width
        x += _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{x - _GAP}" height="{_HEIGHT}" role="img" '
        f'aria-label="{escape(label_of(told))}">'
        "<style>text{font:11px system-ui,sans-serif;fill:#fff;text-anchor:middle}</style>"
        f"{''.join(parts)}</svg>\n"
    )


def fault_row(fault: Fault) -> list[str]:
    """A row of the table of symptoms, with links to the patches and threads that it names."""
    fixed = f", fixed in {fault.fixed_in}" if fault.fixed_in else ""
    threads = f" ({fault.numbers})" if fault.threads else ""
    prevents = f"our {fault.patch}" if fault.patch else ""
    helps = ", or ".join(filter(None, (prevents, fault.help))) or ("" if fixed else "nothing")
    cells = [fault.symptom, f"{fault.releases}{fixed}{threads}", helps]
    linked = [
        _PATCH.sub(lambda found: f"[`{found[2]}`]({_page_of(found[2], SYMPTOMS)})", cell)
        for cell in cells
    ]
    return [_NUMBER.sub(rf"[#\1]({_THREAD}\1)", cell) for cell in linked]


def _page_of(patch_id: str, page: str) -> str:
    return posixpath.relpath(pages.file(patch_id), posixpath.dirname(page))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command on this checkout; 0 fine, 1 not current under ``--check``."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.maintain.tables")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if not current")
    options = parser.parse_args(arguments)
    patch_sets = sets.load()
    words = judge_releases(patch_sets)
    measured = gains.read(ROOT)
    page_of = {patch.id: pages.file(patch.id) for patch in by_id(patch_sets).values()}
    symptoms = [["what you see", "releases", "what helps"], *map(fault_row, FAULTS)]
    makers: dict[str, Callable[[str], str]] = {
        gains.FACE: lambda text: pages.replace_block(text, "gains", gains.table(measured, ROOT)),
        PATCHES: lambda text: pages.replace_block(
            text, "releases", release_table(patch_sets, words, measured)
        ),
        BADGES: lambda _: picture(badges(ROOT)),
        gains.PAGE: lambda _: gains.page(measured, page_of),
        "tests/releases/verdicts.md": lambda _: verdict_page(patch_sets, words),
        tested.PAGE: lambda _: tested.page(ROOT, patch_sets, words),
        SYMPTOMS: lambda text: pages.replace_block(text, "faults", pages.markdown(symptoms)),
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
