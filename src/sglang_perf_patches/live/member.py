"""One patch in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..judge.source import Definition
from ..judge.verdict import Verdict
from ..model.patch import Patch, Variant
from ..model.state import RunFlag, State
from .swap import Slot

logger = logging.getLogger("sglang_perf_patches")

WAITING = frozenset({"pending", "superseded"})
WORKING = frozenset({"live", "pending", "gated", "not needed"})
SERVING = frozenset({"live", "pending", "built-in", "superseded", "gated", "not needed"})
"""States that satisfy a requirement."""


@dataclass(frozen=True)
class Drain:
    """Work that a patch holds between its calls.

    Attributes:
        is_idle: whether it holds none.
        waits_for: what it waits for until then, after "until".
    """

    is_idle: Callable[[], bool]
    waits_for: str


@dataclass(eq=False)
class Member:
    """One patch in this process.

    Attributes:
        patch: its declaration.
        order: its place among all.
        status: its state, and why; one object, so that no reader sees half of a change.
        verdict: what was judged of its code.
        ran: its run flag.
        gate: why it runs only stock's code; "" while it does not.
        slots: what it changes, by reference; noted before the first change.
        seen: what it touches and relies on, as it was when that was verified last.
        drains: what it holds.
        end: the state and the reason that it is to have, once it has been taken off.
    """

    patch: Patch
    order: int
    status: tuple[State, str] = ("off", "not chosen")
    verdict: Verdict | None = None
    ran: RunFlag = field(default_factory=RunFlag)
    gate: str = ""
    slots: dict[str, Slot] = field(default_factory=dict)
    seen: list[Any] = field(default_factory=list)
    drains: tuple[Drain, ...] = ()
    end: tuple[State, str] | None = None

    @property
    def state(self) -> State:
        """What became of it."""
        return self.status[0]

    @property
    def variant(self) -> Variant:
        """The body of ours that applies."""
        assert self.verdict is not None
        assert self.verdict.variant is not None
        return self.verdict.variant

    @property
    def definitions(self) -> Mapping[str, Definition]:
        """What it changes and relies on, as the source has it."""
        return (self.verdict.definitions if self.verdict else None) or {}

    def each_definition(self) -> Iterator[Definition]:
        """The same, with the functions of those that are classes."""
        for definition in self.definitions.values():
            yield definition
            yield from definition.members

    def waits_for(self) -> str:
        """What must end before it may be taken off; "" if nothing must."""
        for drain in self.drains:
            try:
                if drain.is_idle():
                    continue
            except Exception:  # it can't tell
                logger.debug("%s: is it idle?", self.patch.id, exc_info=True)
            return drain.waits_for
        return ""
