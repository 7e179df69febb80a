"""Which patches are chosen: the grammar of ``SGLANG_PERF_PATCHES``.

Comma-separated names of sets and patches, ``all`` (every patch that is on by default) or ``none``;
a leading ``-`` takes out. Unset means ``all``. Policy patches are chosen only by their own full
name.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .patch import Patch

VARIABLE = "SGLANG_PERF_PATCHES"
STRICT_VARIABLE = "SGLANG_PERF_PATCHES_STRICT"


class SelectionError(ValueError):
    """The selection is malformed, or names something that does not exist."""


class StrictFailure(SystemExit):
    """What was chosen by name can't be had, and STRICT asks for an end.

    Not an Exception, because sglang's plugin loader swallows those.
    """


@dataclass(frozen=True)
class Selection:
    """What was chosen.

    Attributes:
        text: as the operator wrote it.
        chosen: ids, in declared order.
        by_name: the ids among them that a set's or a patch's name brought in (not ``all``).
        in_full: the ids that were named in full.
    """

    text: str
    chosen: tuple[str, ...]
    by_name: frozenset[str]
    in_full: frozenset[str]


def from_environment() -> str:
    """The text of the selection: ``all`` where the variable is not set."""
    return os.environ.get(VARIABLE, "all")


def strict_from_environment() -> bool:
    """Whether ``SGLANG_PERF_PATCHES_STRICT`` asks for an end instead of a warning."""
    return os.environ.get(STRICT_VARIABLE, "").strip().lower() in {"1", "true", "yes", "on"}


def is_off(text: str) -> bool:
    """Whether the text chooses nothing, without looking at any declaration."""
    return text.strip() in {"", "none"}


def parse(text: str, patches: Mapping[str, Patch]) -> Selection:
    """Turn the text into a selection.

    Raises:
        SelectionError: an empty item, an unknown name (the near ones are listed), ``none`` beside
            something else, or a patch named in full whose dependency is taken out.
    """
    if is_off(text):
        return Selection(text, (), frozenset(), frozenset())
    items = [item.strip() for item in text.split(",")]
    if "" in items:
        raise SelectionError(f"{text!r} has an empty item: write names separated by single commas")
    if "none" in items:
        raise SelectionError(f"{text!r}: 'none' stands alone or not at all")
    plus = [item for item in items if not item.startswith("-")]
    minus = [item[1:].strip() for item in items if item.startswith("-")]

    in_full = frozenset(item for item in plus if item in patches)
    by_name = {id for item in plus if item != "all" for id in _members(item, patches)}
    chosen = set(by_name)
    if "all" in plus or not plus:
        chosen |= {patch.id for patch in patches.values() if patch.is_default}
    taken_out = {id for item in minus for id in _members(item, patches, policies=True)}

    chosen = _with_requirements(chosen, patches)
    by_name = _with_requirements(by_name, patches)
    for id in sorted(in_full - taken_out):
        lost = _requirements(id, patches) & taken_out
        if lost:
            raise SelectionError(f"{id!r} needs {min(lost)!r}, which {text!r} takes out")
    keep = {id for id in chosen - taken_out if not _requirements(id, patches) & taken_out}
    return Selection(
        text,
        tuple(id for id in patches if id in keep),
        frozenset(by_name & keep),
        in_full & keep,
    )


def _members(name: str, patches: Mapping[str, Patch], *, policies: bool = False) -> set[str]:
    """The ids that a name stands for. Taking a set out takes its policies out too."""
    if name in patches:
        return {name}
    in_set = [patch for patch in patches.values() if patch.set == name]
    if not in_set:
        raise SelectionError(_unknown(name, patches))
    return {patch.id for patch in in_set if policies or patch.is_default}


def _unknown(name: str, patches: Mapping[str, Patch]) -> str:
    sets = list(dict.fromkeys(patch.set for patch in patches.values()))
    near = difflib.get_close_matches(name, ["all", "none", *sets, *patches], n=3, cutoff=0.5)
    if near:
        return f"unknown set or patch {name!r}: did you mean {' or '.join(near)}?"
    return f"unknown set or patch {name!r}: the sets are {', '.join(sets)}"


def _requirements(id: str, patches: Mapping[str, Patch]) -> set[str]:
    return _with_requirements({id}, patches) - {id}


def _with_requirements(ids: Iterable[str], patches: Mapping[str, Patch]) -> set[str]:
    found: set[str] = set()
    waiting = list(ids)
    while waiting:
        id = waiting.pop()
        if id not in found:
            found.add(id)
            waiting.extend(patches[id].requires)
    return found
