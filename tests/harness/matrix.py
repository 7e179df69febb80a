"""Which releases the tests of a set run on, and which of its patches apply to one."""

from collections.abc import Collection, Iterable
from functools import cache

from sglang_perf_patches import downloads, sets
from sglang_perf_patches.compat import source
from sglang_perf_patches.compat.verdict import judge_each
from sglang_perf_patches.model import releases


def newest_of_each_group(name: str) -> tuple[str, ...]:
    """The newest of each group of releases that agree in every definition that a set declares."""
    return _newest_of_each(name, releases.KNOWN, sets.declared(name).known)


@cache
def to_prove(name: str) -> dict[str, tuple[str, ...]]:
    """Release → the patches of a set to prove on it, as it is the newest with that patch's code.

    Releases have the same code for a patch if they have the same variant of it, and agree in every
    definition that this one changes or relies on.
    """
    chosen: set[tuple[str, str]] = set()
    for patch in sets.declared(name).patches:
        for variant in patch.variants:
            known = [each for each in releases.KNOWN if each in variant.releases]
            there = [each for each in known if patch.id in applying(name, each)]
            references = (*variant.targets, *variant.adds, *variant.depends)
            chosen |= {(each, patch.id) for each in _newest_of_each(name, there, references)}
    return {
        release: patches
        for release in releases.KNOWN
        if (patches := tuple(id for id in applying(name, release) if (release, id) in chosen))
    }


def _newest_of_each(
    name: str, by_age: Iterable[str], references: Collection[str]
) -> tuple[str, ...]:
    known = sets.declared(name).known
    newest: dict[tuple[tuple[str, str], ...], str] = {}
    for release in by_age:
        code = tuple(
            (reference, digest)
            for reference in references
            for digest, where in known.get(reference, {}).items()
            if release in where
        )
        newest[code] = release
    return tuple(newest.values())


@cache
def applying(name: str, release: str) -> tuple[str, ...]:
    tree = source.at(downloads.tree(release))
    chosen = [each for each in sets.load() if each.name == name]
    return tuple(each.patch.id for each in judge_each(chosen, tree) if each.word == "applies")


def before(release: str, other: str) -> bool:
    return releases.KNOWN.index(release) < releases.KNOWN.index(other)
