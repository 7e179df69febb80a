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
def applying(name: str, release: str) -> tuple[str, ...]:
    """The patches of a set that apply to a release."""
    tree = source.at(downloads.tree(release))
    chosen = [each for each in sets.load() if each.name == name]
    return tuple(each.patch.id for each in judge_each(chosen, tree) if each.word == "applies")


def before(release: str, other: str) -> bool:
    """Whether a release is older than another one."""
    return releases.KNOWN.index(release) < releases.KNOWN.index(other)
