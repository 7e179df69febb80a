"""What a patch would do to a sglang tree, judged from the tree's source alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ..model import releases
from ..model.patch import Marker, Patch, PatchSet, Variant
from .source import Definition, Tree, TreeError

Word = Literal["applies", "built-in", "absent", "refused"]


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


def judge_all(sets: Iterable[PatchSet], tree: Tree) -> list[Verdict]:
    """Judge every patch of the sets; what a patch requires is judged with it.

    Raises:
        TreeError: a file that a verdict needs can't be read or parsed.
    """
    verdicts = {
        patch.id: judge(patch, patch_set.known, tree)
        for patch_set in sets
        for patch in patch_set.patches
    }
    return [_with_requirements(verdict, verdicts) for verdict in verdicts.values()]


def judge_each(sets: Iterable[PatchSet], tree: Tree) -> list[Verdict]:
    """As `judge_all`, but an unreadable file refuses only the patches that need it."""
    verdicts = {}
    for patch_set in sets:
        for patch in patch_set.patches:
            try:
                verdicts[patch.id] = judge(patch, patch_set.known, tree)
            except TreeError as error:
                verdicts[patch.id] = Verdict(patch, "refused", str(error))
    return [_with_requirements(verdict, verdicts) for verdict in verdicts.values()]


def judge(patch: Patch, known: Mapping[str, Mapping[str, tuple[str, ...]]], tree: Tree) -> Verdict:
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

    found = {reference: tree.definition(reference) for reference in patch.references()}
    agreeing: Counter[str] = Counter()
    for variant in patch.variants:
        needed = variant.targets + variant.depends
        for release in reversed(variant.releases):
            same = [reference for reference in needed if _same(reference, found, known, release)]
            brought = [name for name in variant.adds if tree.definition(name)]
            if len(same) == len(needed) and not brought:
                return Verdict(
                    patch,
                    "applies",
                    f"proven on this code, as released in {release}",
                    variant,
                    release,
                    {ref: definition for ref in needed if (definition := found[ref])},
                )
            agreeing[release] = len(same) - len(needed) - len(brought)
    return _refusal(patch, known, tree, found, agreeing)


def _refusal(
    patch: Patch,
    known: Mapping[str, Mapping[str, tuple[str, ...]]],
    tree: Tree,
    found: Mapping[str, Definition | None],
    agreeing: Counter[str],
) -> Verdict:
    """Name what differs from the nearest release: the fewest definitions, then the newest."""
    order = [release for variant in patch.variants for release in variant.releases]
    order.sort(key=_age)
    nearest = max(order, key=lambda release: (agreeing[release], _age(release)))
    variant = next(variant for variant in patch.variants if nearest in variant.releases)
    unknown = [
        reference
        for reference in variant.targets + variant.depends
        if not _same(reference, found, known, nearest)
    ]
    unknown += [reference for reference in variant.adds if tree.definition(reference)]
    gone = [ref for ref in unknown if ref not in variant.adds and not tree.definition(ref)]
    what = f"{unknown[0]} is {'missing' if unknown[0] in gone else 'not the code we know'}"
    more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    return Verdict(
        patch,
        "refused",
        f"{what}{more} (nearest known release: {nearest})",
        nearest=nearest,
        unknown=tuple(unknown),
    )


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
    if definition is None:
        return False
    lacking = not marker.lacks or marker.lacks not in definition.text
    return marker.contains in definition.text and lacking


def _same(
    reference: str,
    found: Mapping[str, Definition | None],
    known: Mapping[str, Mapping[str, tuple[str, ...]]],
    release: str,
) -> bool:
    definition = found[reference]
    return definition is not None and release in known.get(reference, {}).get(definition.digest, ())


def _age(release: str) -> int:
    """Position among the known releases; source builds come before them all."""
    return releases.KNOWN.index(release) if release in releases.KNOWN else -1
