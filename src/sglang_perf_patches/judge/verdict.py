"""What a patch would do to a sglang tree, judged from the tree's source alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ..model import releases
from ..model.patch import Marker, Patch, PatchSet, Variant
from .definition import differing
from .source import Definition, Tree, TreeError

Word = Literal["applies", "built-in", "absent", "refused"]
Known = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Reference → {digest of the definition → releases that have it}."""


@dataclass(frozen=True)
class Verdict:
    """A patch, a word, and why.

    Attributes:
        patch: what was judged.
        word: ``applies``, ``built-in``, ``absent`` or ``refused``.
        reason: one sentence.
        variant: the body that applies, else None.
        release: the release whose code the tree has, where one applies.
        definitions: the targets and depends of `variant` as the tree has them, by reference.
        nearest: for a refusal, the known release whose code is nearest, if any.
        unknown: for a refusal, the definitions that differ from `nearest`.
    """

    patch: Patch
    word: Word
    reason: str
    variant: Variant | None = None
    release: str | None = None
    definitions: Mapping[str, Definition] | None = None
    nearest: str | None = None
    unknown: tuple[str, ...] = ()


def judge_each(
    sets: Iterable[PatchSet], tree: Tree, only: Collection[str] | None = None
) -> list[Verdict]:
    """Judge the patches of the sets, each by itself and with what it requires.

    A file that can't be read, or is there without its source, refuses the patches that need it and
    no other. What was read of the tree is kept where the tree has a cache.

    Args:
        sets: in the order in which the verdicts come.
        tree: what is judged.
        only: ids of patches to judge, with those that they require; None for every patch.
    """
    homes = {patch.id: (patch, each.known) for each in sets for patch in each.patches}
    wanted = set(homes) if only is None else set(only) & set(homes)
    alone: dict[str, Verdict] = {}
    waiting = sorted(wanted)
    while waiting:
        id = waiting.pop()
        if id not in alone:
            patch, known = homes[id]
            alone[id] = _alone(patch, known, tree)
            waiting.extend(patch.requires)
    tree.save()
    return [_with_requirements(alone[id], alone) for id in homes if id in wanted]


def judge(patch: Patch, known: Known, tree: Tree) -> Verdict:
    """Judge one patch by itself.

    Upstream's own change wins over ours, so markers come first. A variant applies where some
    release of it has exactly the tree's source in every definition: pieces that are each known,
    but from releases that don't go together, were never proven together.

    Raises:
        TreeError: a file that the verdict needs can't be read or parsed.
    """
    if patch.markers and all(_holds(marker, tree) for marker in patch.markers):
        since = f" since {patch.built_in_since}" if patch.built_in_since else ""
        return Verdict(patch, "built-in", f"upstream has it{since}")
    if not any(tree.definition(anchor) for anchor in patch.all_anchors()):
        return Verdict(patch, "absent", patch.absent_because)

    there = {reference: tree.definition(reference) for reference in patch.references()}
    agreeing: dict[str, int] = {}
    for variant in patch.variants:
        needed = variant.targets + variant.depends
        same = Counter(
            release
            for name in needed
            for release in set(_releases_with(name, there[name], known, tree))
        )
        brought = [name for name in variant.adds if tree.definition(name)]
        for release in reversed(variant.releases):
            if same[release] == len(needed) and not brought:
                return Verdict(
                    patch,
                    "applies",
                    f"proven on this code, as released in {release}",
                    variant,
                    release,
                    {name: definition for name in needed if (definition := there[name])},
                )
            agreeing[release] = same[release] - len(needed) - len(brought)
    return _refusal(patch, known, tree, there, agreeing)


def _alone(patch: Patch, known: Known, tree: Tree) -> Verdict:
    try:
        return judge(patch, known, tree)
    except TreeError as error:
        return Verdict(patch, "refused", str(error))


def _refusal(
    patch: Patch,
    known: Known,
    tree: Tree,
    there: Mapping[str, Definition | None],
    agreeing: Mapping[str, int],
) -> Verdict:
    """Name what differs from the nearest release.

    It differs in the fewest definitions; then it is the one whose version the tree has, else the
    newest.
    """
    order = [release for variant in patch.variants for release in variant.releases]
    version = tree.version.partition("+")[0]
    nearest = max(order, key=lambda each: (agreeing[each], each == version, _age(each)))
    variant = next(variant for variant in patch.variants if nearest in variant.releases)
    unknown = [
        reference
        for reference in variant.targets + variant.depends
        if nearest not in _releases_with(reference, there[reference], known, tree)
    ]
    unknown += [reference for reference in variant.adds if tree.definition(reference)]
    gone = [name for name in unknown if name not in variant.adds and not tree.definition(name)]
    what = f"{unknown[0]} is {_how(unknown[0], gone, there, known, nearest)}"
    more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    return Verdict(
        patch,
        "refused",
        f"{what}{more} (nearest known release: {nearest})",
        nearest=nearest,
        unknown=tuple(unknown),
    )


def _how(
    reference: str,
    gone: Collection[str],
    there: Mapping[str, Definition | None],
    known: Known,
    nearest: str,
) -> str:
    """In what a definition is other than in the nearest release."""
    if reference in gone:
        return "missing"
    definition = there.get(reference)
    for digest, where in known.get(reference, {}).items():
        if definition is not None and nearest in where and digest.startswith(definition.own):
            part = differing(digest, definition.digest)
            return f"not the code we know: {part} changed" if part else "not the code we know"
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


def _releases_with(
    reference: str, definition: Definition | None, known: Known, tree: Tree
) -> tuple[str, ...]:
    """The known releases whose code has this definition to the letter."""
    if definition is None:
        return ()
    hashes = known.get(reference, {})
    found = hashes.get(definition.digest, ())
    # Of a source build only the definitions' own source is known. That is not enough for a tree
    # that is a release, or is made of one.
    if tree.version.partition("+")[0] in releases.KNOWN:
        return found
    builds = (name for name in hashes.get(definition.own, ()) if name not in releases.KNOWN)
    return (*found, *builds)


def _age(release: str) -> int:
    """Position among the known releases; source builds come before them all."""
    return releases.KNOWN.index(release) if release in releases.KNOWN else -1
