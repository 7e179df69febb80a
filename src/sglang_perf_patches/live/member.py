"""A patch in this process, and what its install function declares."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from ..compat.source import Definition
from ..compat.verdict import Verdict
from ..model.patch import Patch, Variant
from ..model.patching import Make
from ..model.state import RunFlag, State
from .imports import is_loaded
from .switch import raw
from .wrappers import Conflict, chain, owner_of

logger = logging.getLogger("sglang_perf_patches")


@dataclass
class Found:
    """What a verification in memory found."""

    wrappers: list[str] = field(default_factory=list)  # with owners, around what it changes
    stock: dict[str, FunctionType] = field(default_factory=dict)  # by reference, also what it needs

    @property
    def reason(self) -> str:
        """The reason to show for a live patch."""
        return f"wrapped by {'; '.join(self.wrappers)}" if self.wrappers else ""


@dataclass(eq=False)
class Member:
    """One patch in this process."""

    patch: Patch
    status: tuple[State, str] = ("off", "not chosen")  # one object: nobody reads half of a change
    verdict: Verdict | None = None  # on the installed sglang
    ran: RunFlag = field(default_factory=RunFlag)
    gate: str = ""  # why its code now runs only stock's
    places: dict[str, Any] = field(default_factory=dict)  # reference → what it changes
    layers: list[tuple[Any, Make]] = field(default_factory=list)  # places, in declared order
    found: Found = field(default_factory=Found)  # by the last verification
    seen: list[Any] = field(default_factory=list)  # the identity snapshot of that
    # The work that it may hold between its calls: whether it holds none, and what ends that work,
    # worded to follow "until".
    drains: list[tuple[Callable[[], bool], str]] = field(default_factory=list)
    end: tuple[State, str] | None = None  # its status once it is removed, if it is marked for that

    @property
    def state(self) -> State:
        """The state, without its reason."""
        return self.status[0]

    @property
    def shown(self) -> tuple[State, str]:
        """The status; the reason of a live patch may be its own note."""
        state, reason = self.status
        return state, reason or (self.ran.note if state == "live" else "")

    @property
    def variant(self) -> Variant:
        """The variant that applies here; only for a patch whose verdict is ``applies``."""
        assert self.verdict is not None
        assert self.verdict.variant is not None
        return self.verdict.variant

    @property
    def definitions(self) -> Mapping[str, Definition]:
        """Reference → definition that it changes or relies on, as read from the source."""
        return (self.verdict.definitions if self.verdict else None) or {}

    def each_definition(self) -> Iterator[Definition]:
        """`definitions`, and the functions of those that are classes."""
        for definition in self.definitions.values():
            yield definition
            yield from definition.members

    def waits_for(self) -> str:
        """The work that must end before it may be removed; "" if it holds none."""
        for is_idle, waits_for in self.drains:
            try:
                if is_idle():
                    continue
            except Exception:  # unknown counts as busy
                logger.debug("%s: is it idle?", self.patch.id, exc_info=True)
            return waits_for
        return ""

    def forget(self) -> None:
        """Drop its layers, and what they computed."""
        for place, layer in self.layers:
            place.forget(layer)
        self.places, self.layers = {}, []


@dataclass(eq=False)
class Patching:
    """Collects the changes that an install function declares; see `model.patching.Patching`."""

    _member: Member
    ran: RunFlag
    gate: Callable[[str], None]
    changes: list[tuple[str, Make]] = field(default_factory=list)
    state: SimpleNamespace = field(default_factory=SimpleNamespace)

    def module(self, name: str) -> ModuleType:
        """See `model.patching.Patching.module`."""
        # The variant's modules are complete, even if their imports are still on the stack.
        if name not in self._member.variant.modules() and not is_loaded(name):
            raise RuntimeError(f"module {name} has not been imported")
        return sys.modules[name]

    def get(self, reference: str) -> Any:
        """See `model.patching.Patching.get`."""
        return raw(*owner_of(reference))

    def override(self, reference: str, make: Make) -> None:
        """See `model.patching.Patching.override`."""
        variant, id = self._member.variant, self._member.patch.id
        if reference not in variant.targets + variant.adds:
            raise RuntimeError(f"{reference} is not declared as a target of {id}")
        self.changes.append((reference, make))

    def drain(self, is_idle: Callable[[], bool], waits_for: str) -> None:
        """See `model.patching.Patching.drain`."""
        self._member.drains.append((is_idle, waits_for))


def with_dependents(members: Iterable[Member], among: Collection[Member]) -> list[Member]:
    """Members, and those of `among` that require any of them, directly or not."""
    together = list(dict.fromkeys(members))
    for member in together:  # the loop also visits what it appends
        id = member.patch.id
        together += [each for each in among if id in each.patch.requires and each not in together]
    return together


def forget_results(members: Iterable[Member]) -> None:
    """Clear ``lru_cache``s around what members change: they hold what another function returned."""
    for reference in {reference for each in members for reference in each.places}:
        with contextlib.suppress(Conflict):
            for link in chain(raw(*owner_of(reference))):
                getattr(link, "cache_clear", lambda: None)()
