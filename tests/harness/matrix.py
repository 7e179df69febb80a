"""Which releases the tests of a set run on, and which of its patches apply to one."""

from __future__ import annotations

from functools import cache

from sglang_perf_patches import downloads, sets
from sglang_perf_patches.compat import source
from sglang_perf_patches.compat.verdict import judge_each
from sglang_perf_patches.model import releases


def newest_of_each_group(name: str) -> tuple[str, ...]:
    """The newest of each group of releases that agree in every definition that a set declares."""
    known = sets.declared(name).known
    newest: dict[tuple[tuple[str, str], ...], str] = {}
    for release in releases.KNOWN:
        code = tuple(
            (reference, digest)
            for reference, digests in known.items()
            for digest, where in digests.items()
            if release in where
        )
        newest[code] = release
    return tuple(newest.values())


@cache
def to_prove(name: str) -> dict[str, tuple[str, ...]]:
    """Release → the patches of a set to prove on it, as it is the newest with that patch's code.

    Releases have the same code for a patch if they have the same variant of it, and agree in every
    definition that this one changes or relies on.
    """
    known = sets.declared(name).known
    newest: dict[tuple[object, ...], tuple[str, str]] = {}
    for release in releases.KNOWN:
        for patch in sets.declared(name).patches:
            for variant in patch.variants if patch.id in applying(name, release) else ():
                if release not in variant.releases:
                    continue
                code = tuple(
                    (reference, digest)
                    for reference in (*variant.targets, *variant.adds, *variant.depends)
                    for digest, where in known.get(reference, {}).items()
                    if release in where
                )
                newest[patch.id, variant.releases, code] = release, patch.id
    chosen = set(newest.values())
    return {
        release: patches
        for release in releases.KNOWN
        if (patches := tuple(id for id in applying(name, release) if (release, id) in chosen))
    }


@cache
def applying(name: str, release: str) -> tuple[str, ...]:
    """The patches of a set that apply to a release."""
    tree = source.at(downloads.tree(release))
    chosen = [each for each in sets.load() if each.name == name]
    return tuple(each.patch.id for each in judge_each(chosen, tree) if each.word == "applies")


def before(release: str, other: str) -> bool:
    """Whether a release is older than another one."""
    return releases.KNOWN.index(release) < releases.KNOWN.index(other)
