"""What happened to the patches of one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal[
    "live",
    "pending",
    "off",
    "superseded",
    "gated",
    "conflict",
    "failed",
    "built-in",
    "absent",
    "refused",
]


@dataclass(frozen=True)
class PatchState:
    """What happened to one patch in this process."""

    id: str
    state: State
    reason: str
    ran: bool


@dataclass(frozen=True)
class Report:
    """What happened to every patch in this process.

    Attributes:
        selection: the text that chose.
        sglang: version of the sglang in this process.
        patches: in declared order.
    """

    selection: str
    sglang: str
    patches: tuple[PatchState, ...]

    def of(self, id: str) -> PatchState:
        """The state of one patch."""
        return next(state for state in self.patches if state.id == id)


class RunFlag:
    """Whether patched code has run: set ``seen = True`` there, which costs a store and no call."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        """Start unseen."""
        self.seen = False
