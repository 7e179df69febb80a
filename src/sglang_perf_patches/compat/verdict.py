"""The verdict on a patch for a sglang tree, from nothing but the tree's source."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ..model import releases
from ..model.patch import Marker, Patch, PatchSet, Variant
from .definition import differing
from .source import Definition, Tree, TreeError

Word = Literal["applies", "built-in", "absent", "refused"]
Known = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Reference → {digest of the definition → releases that have it}."""

_Others = dict[str, tuple[Variant, list[str]]]  # release → its variant, and what differs from it


@dataclass(frozen=True)
class Verdict:
    """A patch, a word, and why in one sentence."""

    patch: Patch
    word: Word
    reason: str
    # If the patch applies:
    variant: Variant | None = None  # with only those `depends` that `release` has
    release: str | None = None  # whose code the tree has
    definitions: Mapping[str, Definition] | None = None  # the variant's targets and depends
    # For a refusal:
    nearest: str | None = None  # the known release whose code differs least, if any
    unknown: tuple[str, ...] = ()  # the definitions that differ from `nearest`
    closest: Variant | None = None  # the variant for `nearest`

    def __str__(self) -> str:
        """``mlx.kv-arena applies: this is the code of 0.5.23, on which …``."""
        return f"{self.patch.id} {self.word}: {self.reason}"


def judge_each(
    sets: Iterable[PatchSet], tree: Tree, only: Collection[str] | None = None
) -> list[Verdict]:
    """Judge patches in the order of their sets, each together with those it requires.

    A file that can't be read, or has no source, refuses only the patches that need it. `only` has
    the ids of the patches to judge; None for every patch.
    """
    homes = {patch.id: (patch, each.known) for each in sets for patch in each.patches}
    wanted = set(homes) if only is None else set(only) & set(homes)
    alone: dict[str, Verdict] = {}
    waiting = sorted(wanted)
    for id in waiting:  # the loop also visits what it appends
        if id in alone:
            continue
        patch, known = homes[id]
        try:
            alone[id] = judge(patch, known, tree)
        except TreeError as error:
            alone[id] = Verdict(patch, "refused", str(error))
        waiting.extend(patch.requires)
    return [_with_requirements(alone[id], alone) for id in homes if id in wanted]


def judge(patch: Patch, known: Known, tree: Tree) -> Verdict:
    """Judge one patch by itself.

    Upstream's own change wins over ours, so markers come first. A variant applies if the tree has
    exactly the definitions of one of its releases. Definitions that are each known, but from
    different releases, are refused: they were never proven together.

    Raises:
        TreeError: a file that the verdict needs can't be read or parsed.
    """
    if patch.markers and all(_holds(marker, tree) for marker in patch.markers):
        since = f" since {patch.built_in_since}" if patch.built_in_since else ""
        return Verdict(patch, "built-in", f"upstream has it{since}")
    anchors = patch.anchors or [name for each in patch.variants for name in each.targets]
    if not any(map(tree.definition, anchors)):
        return Verdict(patch, "absent", patch.absent_because)

    there = {reference: tree.definition(reference) for reference in patch.references()}
    with_it = {name: _releases_with(there[name], known, tree) for name in there}
    others: _Others = {}
    for declared in patch.variants:
        brought = [name for name in declared.adds if tree.definition(name)]
        for release in reversed(declared.releases):
            variant = as_in(declared, release, known)
            needed = variant.targets + variant.depends
            unknown = [name for name in needed if release not in with_it[name]]
            unknown += [name for name in declared.depends if name not in needed and there[name]]
            unknown += brought
            if not unknown:
                reason = f"this is the code of {release}, on which the patch was proven"
                read = {name: definition for name in needed if (definition := there[name])}
                return Verdict(patch, "applies", reason, variant, release, read)
            others[release] = variant, unknown
    return _refusal(patch, known, tree, others)


def as_in(variant: Variant, release: str, known: Known) -> Variant:
    """The variant with only those `depends` that a release has, by the fingerprints, if any."""

    def is_there(name: str) -> bool:
        digests = known.get(name)
        return not digests or any(release in where for where in digests.values())

    depends = tuple(filter(is_there, variant.depends))
    return variant if depends == variant.depends else replace(variant, depends=depends)


def _refusal(patch: Patch, known: Known, tree: Tree, others: _Others) -> Verdict:
    """Refuse, and name what differs from the nearest release.

    That is the one that differs in the fewest definitions. Among several it is the one with the
    tree's version, else the newest.
    """
    version = _version(tree)
    nearest = min(others, key=lambda each: (len(others[each][1]), each != version, -_age(each)))
    variant, unknown = others[nearest]
    how = _how(tree.definition(unknown[0]), known, nearest)
    further = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    reason = f"{unknown[0]} is {how}{further} (nearest known release: {nearest})"
    return Verdict(
        patch, "refused", reason, nearest=nearest, unknown=tuple(unknown), closest=variant
    )


def _how(definition: Definition | None, known: Known, nearest: str) -> str:
    """How a definition differs from the nearest release's, to follow "NAME is"."""
    if definition is None:
        return "missing"
    for digest, where in known.get(definition.reference, {}).items():
        is_nearest = nearest in where and digest.startswith(definition.own)
        if is_nearest and (part := differing(digest, definition.digest)):
            return f"not the code we know: {part} changed"
    return "not the code we know"


def _with_requirements(verdict: Verdict, verdicts: Mapping[str, Verdict]) -> Verdict:
    if verdict.word != "applies":
        return verdict
    for id in verdict.patch.requires:
        needed = _with_requirements(verdicts[id], verdicts)
        if needed.word in {"refused", "absent"}:
            return Verdict(verdict.patch, needed.word, f"it needs {id}: {needed.reason}")
    return verdict


def _holds(marker: Marker, tree: Tree) -> bool:
    definition = tree.definition(marker.definition)
    return definition is not None and marker.contains in definition.text


def _releases_with(definition: Definition | None, known: Known, tree: Tree) -> tuple[str, ...]:
    """The known releases that have exactly this definition."""
    if definition is None:
        return ()
    hashes = known.get(definition.reference, {})
    with_it = hashes.get(definition.digest, ())
    # For a source build only the digest of the definition's own source is known, without its
    # surroundings. That is too little to identify a tree that is a release or was made from one.
    if _version(tree) in releases.KNOWN:
        return with_it
    builds = (name for name in hashes.get(definition.own, ()) if name not in releases.KNOWN)
    return (*with_it, *builds)


def _version(tree: Tree) -> str:
    return tree.version.partition("+")[0]


def _age(release: str) -> int:
    """Position among the known releases, oldest first; -1 for a source build."""
    return releases.KNOWN.index(release) if release in releases.KNOWN else -1
