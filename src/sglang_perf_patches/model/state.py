"""The states of patches in one process, and who observes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

_OfVerdict = Literal["built-in", "absent", "refused"]
State = Literal["live", "pending", "off", "gated", "not needed", "conflict", "failed", _OfVerdict]


@dataclass(frozen=True)
class PatchState:
    """The state of one patch in a process."""

    id: str
    state: State
    reason: str  # why it is in that state; may be ""
    ran: bool  # whether its code has run

    def __str__(self) -> str:
        """``mlx.kv-arena: live, has run``."""
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.id}: {self.state}{', has run' if self.ran else ''}{reason}"


@dataclass(frozen=True)
class Report:
    """The states of all patches in a process."""

    selection: str  # its text
    sglang: str  # the version
    patches: tuple[PatchState, ...]  # in declared order

    def __str__(self) -> str:
        """A line for each patch, without those that are off, built in or absent."""
        hidden = {"off", "built-in", "absent"}
        lines = [f"  {state}" for state in self.patches if state.state not in hidden]
        live = sum(state.state == "live" for state in self.patches)
        head = f"sglang {self.sglang}, SGLANG_PERF_PATCHES={self.selection}: {live} live"
        return "\n".join([head, *lines])

    def of(self, patch_id: str) -> PatchState:
        """The state of one patch; raises KeyError if there is no such patch."""
        states = {state.id: state for state in self.patches}
        if patch_id not in states:
            raise KeyError(f"no patch is named {patch_id!r}; the patches are {', '.join(states)}")
        return states[patch_id]


class Observer(Protocol):
    """An observer of the patches of this process; `telemetry` registers one."""

    def keep(self, report: Callable[[], Report | None], look_again: Callable[[], None]) -> None:
        """Patches were activated.

        `report` gives their states, None once everything is off again. `look_again` checks them;
        call it about once a second, from any thread.
        """

    def changed(self) -> None:
        """The state of a patch changed. Called with a lock held: note it and return."""

    def drop(self) -> None:
        """Everything is off again."""


class RunFlag:
    """Whether patched code has run: set ``seen = True`` there, which costs a store and no call.

    `note` says what a live patch leaves to stock's code for now, and why: its reason.
    """

    __slots__ = ("note", "seen")

    def __init__(self) -> None:
        self.seen, self.note = False, ""
