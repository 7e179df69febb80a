"""Which tests run: the whole matrix of releases, or as much as shows every patch of ours.

``python3 -m tests`` runs the default tier, ``python3 -m tests --all`` everything. A test says
which releases it is for by a parameter; what the default tier leaves out of that is decided here:

- in the folder of a set, it tests the newest release of each file, and so many more that each patch
  is tested on a release that it is declared for;
- and, for each patch that a change touches, if it touches few (`touched`), the newest release of
  each variant;
- on further releases it proves only the patches that it shows there (`shown_there`), and leaves out
  a test marked ``newest`` unless the release is one of a touched patch's;
- a case draws fewer inputs beside its edges (`DEPTH`), and swa has fewer episodes;
- a test marked ``sampled`` it runs on the oldest, the newest and the one in the middle;
- a test marked ``whole_matrix`` it leaves out.

Who names a release, by ``-k`` or in a test's id, gets it in any tier.
"""

import re
import subprocess
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path

import pytest

from sglang_perf_patches import sets
from sglang_perf_patches.model import releases
from sglang_perf_patches.model.patch import Patch, room_of

DEPTH = "PERF_PATCHES_TESTS_DEPTH"
"""The variable that tells what a test starts how many inputs to draw; all of them without it.

Its name begins otherwise than sglang's and ours, which no test hands on.
"""

_OF_PATCH = re.compile(
    r"(?:src/sglang_perf_patches/(?:sets|verify)|tests/proof)/(\w+)/(?!__init__|known)(\w+)[/.]"
)

MOST_TOUCHED = 6
"""If a change touches more patches, their variants are for ``--all``: the default tier takes
minutes."""

FIRST = ("server", "releases", "proof", "swa", "mamba", "mla", "mlx")
"""Folders in the order of their longest tests, so that no long one is left for the end."""


def left_out(config: pytest.Config, items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests among `items` that this run's tier leaves out."""
    if is_whole(config):
        return []
    matrices = _matrices(items)
    chosen = _chosen(matrices)
    deep = {path: in_depth(path.parent.name, matrix) for path, matrix in matrices.items()}

    def of(item: pytest.Item, release: str) -> set[str]:
        if item.get_closest_marker("sampled"):
            by_age = sorted(matrices[item.path], key=releases.KNOWN.index)
            return {by_age[0], by_age[len(by_age) // 2], by_age[-1]}
        return chosen.get(item.path, {release})

    return [
        item
        for item in items
        if item.get_closest_marker("whole_matrix")
        or ((release := release_of(item)) and release not in of(item, release))
        or (release and item.get_closest_marker("newest") and release not in deep[item.path])
    ]


def is_whole(config: pytest.Config) -> bool:
    """Whether a run has all the tests it collects, at full depth."""
    return bool(config.getoption("--all")) or _names_a_release(config)


def shown_there(
    patches: Iterable[Patch], release: str, ids: Sequence[str], matrix: Collection[str]
) -> tuple[str, ...]:
    """Of `ids`, the patches of a set that apply to a release, those that the default tier proves.

    On the newest release of the matrix it proves all of them, on another one what it shows there.
    """
    if release in newest_of(matrix):
        return tuple(ids)
    patches = tuple(patches)
    shown = shows(patches, matrix).get(release, set())
    shown |= {each for patch in patches for each in of_touched(patch.set, matrix).get(release, ())}
    return tuple(id for id in ids if id in shown)


def shows(patches: Iterable[Patch], matrix: Iterable[str]) -> dict[str, set[str]]:
    """As few releases of a matrix as show every patch that any of them shows, and what each shows.

    The newest is among them. Of two that show as much, the newer one is. Each patch is shown once.
    """
    by_age = sorted(set(matrix), key=releases.KNOWN.index)
    where = {
        patch.id: {release for variant in patch.variants for release in variant.releases}
        for patch in patches
    }
    missing = {patch for patch in where if where[patch] & set(by_age)}
    shown: dict[str, set[str]] = {}
    chosen = by_age[-1] if by_age else ""
    while chosen and (missing or not shown):
        shown[chosen] = {patch for patch in missing if chosen in where[patch]}
        missing -= shown[chosen]
        chosen = max(
            reversed(by_age), key=lambda name: sum(name in where[each] for each in missing)
        )
    return shown


def in_depth(name: str, matrix: Collection[str]) -> set[str]:
    """The releases of a matrix on which the default tier plays tests that are marked ``newest``."""
    return newest_of(matrix) | {*of_touched(name, matrix)}


def of_touched(name: str, matrix: Collection[str]) -> dict[str, set[str]]:
    """Of a set's touched patches: the newest release of each variant → those that have one there.

    A name that no set has gives nothing.
    """
    found: dict[str, set[str]] = {}
    patches = sets.declared(name).patches if name in sets.NAMES else ()
    for patch in patches:
        if patch.id in touched():
            for variant in patch.variants:
                for release in newest_of({*variant.releases} & {*matrix}):
                    found.setdefault(release, set()).add(patch.id)
    return found


@cache
def touched() -> frozenset[str]:
    """The patches whose code or proof differs from main's; on main from the commit before."""
    head, main = (_git("rev-parse", "--verify", "--quiet", name) for name in ("HEAD", "main"))
    base = _git("merge-base", head, main) if head and main else ""
    base = base if base and base != head else _git("rev-parse", "--verify", "--quiet", "HEAD^")
    changed = _git("diff", "--name-only", base or "HEAD").splitlines()
    changed += _git("ls-files", "--others", "--exclude-standard").splitlines()
    patches = [patch.id for name in sets.NAMES for patch in sets.declared(name).patches]
    return touched_by(changed, patches)


def touched_by(changed: Iterable[str], patches: Collection[str]) -> frozenset[str]:
    """Of these patches, those that changed files are of; a set's shared module is of all of it."""
    found: set[str] = set()
    for match in filter(None, map(_OF_PATCH.match, changed)):
        of_set = [patch for patch in patches if patch.startswith(f"{match[1]}.")]
        rooms = {patch: room_of(patch).partition(".")[2] for patch in of_set}
        own = [each for each in of_set if f"{match[2]}_".startswith(f"{rooms[each]}_")]
        found.update(own or of_set)
    return frozenset(found if len(found) <= MOST_TOUCHED else ())


def newest_of(matrix: Collection[str]) -> set[str]:
    """The newest release of a matrix; none of an empty one."""
    return {max(matrix, key=releases.KNOWN.index)} if matrix else set()


def release_of(item: pytest.Item) -> str | None:
    parameters = getattr(item, "callspec", None)
    for value in parameters.params.values() if parameters else ():
        if isinstance(value, str) and value in releases.KNOWN:
            return value
    return None


def group_of(item: pytest.Item) -> str:
    """What runs in one process: tests of a file on one release share what they compute.

    A test marked ``shares_nothing`` has a group for each of its cases.
    """
    if item.get_closest_marker("shares_nothing"):
        return f"{item.path.parent.name}/{item.path.stem}/{item.name}"
    return f"{item.path.parent.name}/{item.path.stem}/{release_of(item) or ''}"


def weight(item: pytest.Item) -> tuple[int, int]:
    """By folder, and in it by release: what has imported one ends if nobody asks for a minute."""
    folder, release = item.path.parent.name, release_of(item)
    of_folder = FIRST.index(folder) if folder in FIRST else len(FIRST)
    return of_folder, -releases.KNOWN.index(release) if release else 0


def _chosen(matrices: dict[Path, set[str]]) -> dict[Path, set[str]]:
    chosen: dict[Path, set[str]] = {}
    for path, matrix in matrices.items():
        if path.parent.name in sets.NAMES:
            of_set = {
                one for other in matrices if other.parent == path.parent for one in matrices[other]
            }
            patches = sets.declared(path.parent.name).patches
            further = {*shows(patches, of_set), *of_touched(path.parent.name, of_set)}
            chosen[path] = newest_of(matrix) | (further & matrix)
    return chosen


def _matrices(items: Iterable[pytest.Item]) -> dict[Path, set[str]]:
    matrices: dict[Path, set[str]] = {}
    for item in items:
        if release := release_of(item):
            matrices.setdefault(item.path, set()).add(release)
    return matrices


def _names_a_release(config: pytest.Config) -> bool:
    words = [config.getoption("keyword") or "", *(arg.partition("::")[2] for arg in config.args)]
    return any(release in word for word in words for release in releases.KNOWN)


def _git(*words: str) -> str:
    """What git prints of this checkout; nothing if it is none."""
    done = subprocess.run(
        ["git", *words], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
