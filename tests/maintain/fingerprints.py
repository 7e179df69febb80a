"""Takes the fingerprints that verdicts compare with from the released wheels.

``python3 -m tests.maintain.fingerprints [SET ...]`` rewrites the ``known.json`` of the sets from
their declarations, and the table of what was read of the releases' files (``compat/releases.xz``).
``tests/releases`` checks that they are what the wheels give. Source builds (``git-…``) have no
wheel, so their entries are carried over as they are. ``--origin NAME=DIR`` takes them from a
checkout.
"""

import argparse
import json
import lzma
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sglang_perf_patches import downloads, sets
from sglang_perf_patches.compat import source, verdict
from sglang_perf_patches.model import releases
from sglang_perf_patches.model.patch import PatchSet

from . import ROOT

Known = dict[str, dict[str, tuple[str, ...]]]


class DeclarationError(ValueError):
    """A declaration names a definition that its release does not have."""


def take(patch_set: PatchSet, origins: Mapping[str, Path] | None = None) -> Known:
    """The fingerprints of every definition that a set declares, from the trees of its releases.

    `origins` has the ``sglang`` package of source builds; others keep what the set knows of them.

    Raises:
        DeclarationError: a target is not in a release that declares it, or what a patch relies on
            is in none of its releases.
    """
    wanted: dict[str, set[str]] = {}
    for patch in patch_set.patches:
        for variant in patch.variants:
            for reference in variant.targets + variant.depends:
                wanted.setdefault(reference, set()).update(variant.releases)
    trees = {release: source.at(root) for release, root in (origins or {}).items()}

    def digest_in(release: str, reference: str) -> str | None:
        """What identifies a definition in a release; None if the release does not have it."""
        if release not in trees and release in releases.KNOWN:
            trees[release] = source.at(downloads.tree(release))
        if release in trees:
            definition = trees[release].definition(reference)
            return definition.digest if definition else None
        for digest, where in patch_set.known.get(reference, {}).items():
            if release in where:
                return digest
        raise DeclarationError(f"{reference}: no fingerprint of {release}; give --origin")

    known: Known = {}
    for reference in sorted(wanted):
        for release in releases.from_spans(as_spans(wanted[reference])):
            if digest := digest_in(release, reference):
                hashes = known.setdefault(reference, {})
                hashes[digest] = (*hashes.get(digest, ()), release)
    there: dict[str, set[str]] = {name: set().union(*known[name].values()) for name in known}
    for patch in patch_set.patches:
        served = {release for variant in patch.variants for release in variant.releases}
        for variant in patch.variants:
            for name in variant.targets:
                if missing := {*variant.releases} - there.get(name, set()):
                    raise DeclarationError(f"{name} is not in {as_spans(missing)}")
        for name in patch.references():
            if not served & there.get(name, set()):
                raise DeclarationError(f"{name} is not in {as_spans(served)}")
    return known


def read_of_releases() -> dict[str, dict[str, Any]]:
    """What `compat` reads of the files of all releases for all sets, by `source.key`."""
    found: dict[str, dict[str, Any]] = {}
    for release in releases.KNOWN:
        tree = source.Tree(source.find(downloads.tree(release)), table=dict)
        verdict.judge_each(sets.load(), tree)
        for path, values in tree.read.items():
            found.setdefault(source.key(path, tree.root), {}).update(values)
    return found


def render(known: Known) -> str:
    """The text of a ``known.json``: one line a digest, with the spans of its releases."""
    spans = {
        reference: {digest: as_spans(where) for digest, where in hashes.items()}
        for reference, hashes in known.items()
    }
    text = json.dumps(spans, indent=1, ensure_ascii=False)
    # A definition that never changed has a line alone.
    return re.sub(r"\{\n {2}(.*[^,])\n \}", r"{\1}", text) + "\n"


def as_spans(names: Iterable[str]) -> str:
    """Releases and source builds in one line: source builds first, then releases by age.

    >>> as_spans(["0.5.13", "0.5.9", "0.5.10", "0.5.10.post1", "git-5b9fbc51dcff"])
    'git-5b9fbc51dcff, 0.5.9 … 0.5.10.post1, 0.5.13'
    """
    builds, places = [], []
    for name in names:
        if name.startswith(releases.SOURCE_BUILD):
            builds.append(name)
        else:
            places.append(releases.KNOWN.index(name))
    spans: list[tuple[int, int]] = []
    for place in sorted(places):
        if spans and place == spans[-1][1] + 1:
            spans[-1] = spans[-1][0], place
        else:
            spans.append((place, place))
    ends = [(releases.KNOWN[first], releases.KNOWN[last]) for first, last in spans]
    return ", ".join([*sorted(builds), *(releases.TO.join(dict.fromkeys(each)) for each in ends)])


def render_table(files: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The table of files by `source.key`; those of one place stand together, which is small."""
    lines = [source.makers()]
    for name in sorted(files, key=lambda each: each.split(" ")[::-1]):
        lines.append(f"{name} {json.dumps(files[name], separators=(',', ':'))}")
    best = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 22}
    return lzma.compress("\n".join(lines).encode(), filters=[best])


def main() -> int:
    """Run the command; 0 fine, 2 bad usage or a bad declaration."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.maintain.fingerprints")
    parser.add_argument("sets", nargs="*", metavar="SET", help="all sets where none is named")
    parser.add_argument("--origin", action="append", default=[], metavar="NAME=DIR")
    options = parser.parse_args()
    unknown = sorted(set(options.sets) - set(sets.NAMES))
    if unknown:
        parser.error(f"unknown set {unknown[0]!r}: the sets are {', '.join(sets.NAMES)}")
    origins = {name: Path(path) for name, path in (text.split("=", 1) for text in options.origin)}
    for name in options.sets or sets.NAMES:
        try:
            patch_set = sets.declared(name)
            known = take(patch_set, origins)
        except (DeclarationError, downloads.DownloadError, source.TreeError) as error:
            print(f"fingerprints of {name}: {error}", file=sys.stderr)
            return 2
        if known != patch_set.known:
            path = ROOT / "src" / "sglang_perf_patches" / "sets" / name / "known.json"
            path.write_text(render(known), encoding="utf-8")
            print(f"fingerprints of {name} are written")
    sets.load.cache_clear()
    table = render_table(read_of_releases())
    if lzma.decompress(table) != lzma.decompress(source.TABLE.read_bytes()):
        source.TABLE.write_bytes(table)
        print(f"{source.TABLE.name} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
