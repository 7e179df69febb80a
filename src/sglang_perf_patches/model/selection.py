"""Which patches are chosen: the grammar of ``SGLANG_PERF_PATCHES``.

Comma-separated names of sets and patches, ``all`` (every patch that is on by default) or ``none``;
a leading ``-`` removes. Unset means ``all``. Policy patches are chosen only by their own full
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .errors import OperatorError
from .patch import Patch
from .switch import OFF, is_off

UNAVAILABLE = frozenset({"gated", "refused", "conflict", "failed"})
"""States and verdicts of a patch that was wanted and does not work."""


class SelectionError(OperatorError, ValueError):
    """The selection is malformed, or names something that does not exist."""


@dataclass(frozen=True)
class Selection:
    """What was chosen."""

    text: str  # as the operator wrote it
    ids: tuple[str, ...]  # of the patches, in declared order
    by_name: frozenset[str]  # those that the name of a set or a patch selected, not only ``all``
    in_full: frozenset[str]  # those whose own id was named

    def is_unavailable(self, patch_id: str, word: str) -> bool:
        """Whether a patch that was named does not work (exit code 1), by its verdict or state."""
        if word == "absent":  # a set's name selects only patches with an effect there
            return patch_id in self.in_full
        return word in UNAVAILABLE and patch_id in self.by_name

    def is_chosen_but_unavailable(self, patch_id: str, state: str) -> bool:
        """Whether a chosen patch does not work in a process, also if only ``all`` selected it."""
        is_chosen = patch_id in self.ids
        return self.is_unavailable(patch_id, state) or (state in UNAVAILABLE and is_chosen)


def parse(text: str, patches: Mapping[str, Patch]) -> Selection:
    """Turn the text into a selection.

    Raises:
        SelectionError: an item is empty, a name is unknown (similar ones are listed), ``none``
            stands next to something else, or a patch named in full requires one that is removed.
    """
    if is_off(text):
        return Selection(text, (), frozenset(), frozenset())
    items = [item.strip() for item in text.split(",")]
    if "" in items:
        raise SelectionError(f"{text!r} has an empty item: write names separated by single commas")
    for item in items:
        if item.lower() in OFF:
            raise SelectionError(f"{text!r}: {item!r} must stand alone")
    plus = [item for item in items if not item.startswith("-")]
    minus = [item[1:].strip() for item in items if item.startswith("-")]

    in_full = frozenset(item for item in plus if item in patches)
    by_name = {patch_id for item in plus if item != "all" for patch_id in members(item, patches)}
    chosen = set(by_name)
    if "all" in plus or not plus:  # only exclusions: all without those
        chosen |= {patch.id for patch in patches.values() if patch.is_default}
    taken_out = {patch_id for item in minus for patch_id in members(item, patches, policies=True)}

    chosen = _with_requirements(chosen, patches)
    by_name = _with_requirements(by_name, patches)
    for patch_id in sorted(in_full - taken_out):
        lost = _with_requirements({patch_id}, patches) & taken_out
        if lost:
            raise SelectionError(f"{patch_id!r} needs {min(lost)!r}, which {text!r} removes")
    keep = {id for id in chosen if not _with_requirements({id}, patches) & taken_out}
    ids = tuple(id for id in patches if id in keep)
    return Selection(text, ids, frozenset(by_name & keep), in_full & keep)


def members(name: str, patches: Mapping[str, Patch], *, policies: bool = False) -> set[str]:
    """The ids of the patch of this name, or of the exact patches of the set of this name.

    With `policies` a set includes its policies, as when it is removed. This raises
    `SelectionError` if the name is unknown.
    """
    if name in patches:
        return {name}
    sets = list(dict.fromkeys(patch.set for patch in patches.values()))
    if name in sets:
        in_set = (patch for patch in patches.values() if patch.set == name)
        return {patch.id for patch in in_set if policies or patch.is_default}
    import difflib  # only for an unknown name; servers need not load it

    names = {"all", "none", *sets, *patches} - {name}
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the sets are {', '.join(sets)}"
    raise SelectionError(f"unknown set or patch {name!r}: {hint}")


def _with_requirements(ids: Iterable[str], patches: Mapping[str, Patch]) -> set[str]:
    reached = list(ids)
    for patch_id in reached:  # the loop also visits what it appends
        reached += [each for each in patches[patch_id].requires if each not in reached]
    return set(reached)
