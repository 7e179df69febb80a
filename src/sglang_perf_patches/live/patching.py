"""The argument of an install function: names in, changes out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..model.patch import Variant
from ..model.patching import Make
from ..model.state import RunFlag
from .identity import owner_of, raw
from .imports import is_loaded
from .member import Drain


@dataclass(eq=False)
class Patching:
    """Takes note of what an install function wants changed. Nothing changes while that runs.

    It belongs to the activation; sets only use it. The methods are those of
    `model.patching.Patching`.

    Attributes:
        release: the release whose code the tree has.
        ran: the patch's run flag.
        gate: called at run time by changed code that from now on runs only stock's code, and why.
        is_leaving: whether it is to be taken off.
        changes: ``(reference, make)``, in the order of the requests.
        drains: what the patch holds between its calls.
        leaves: whether the install function has said when the patch may be taken off.
    """

    _patch: str
    _variant: Variant
    release: str
    ran: RunFlag
    gate: Callable[[str], None]
    is_leaving: Callable[[], bool]
    changes: list[tuple[str, Make]] = field(default_factory=list)
    drains: list[Drain] = field(default_factory=list)
    leaves: bool = False

    def module(self, name: str) -> ModuleType:
        """A module that has been imported."""
        # The variant's modules are complete, even if their imports are still on the stack.
        if name not in self._variant.modules() and not is_loaded(name):
            raise RuntimeError(f"module {name} has not been imported")
        return sys.modules[name]

    def get(self, reference: str) -> Any:
        """The object under a reference: a class, or an attribute as its owner holds it."""
        owner, name = owner_of(reference)
        return raw(owner, name)

    def override(self, reference: str, make: Make) -> None:
        """Replace a declared target, or an added definition that another patch of ours may add."""
        if reference not in self._variant.targets + self._variant.adds:
            raise RuntimeError(f"{reference} is not declared as a target of {self._patch}")
        self.changes.append((reference, make))

    def add(self, reference: str, value: Any) -> None:
        """Bring a declared new attribute."""
        self.override(reference, lambda _: value)

    def drain(self, is_idle: Callable[[], bool], waits_for: str) -> None:
        """Hold work between calls: stay on until `is_idle`."""
        self.leaves = True
        self.drains.append(Drain(is_idle, waits_for))

    def anytime(self, because: str) -> None:
        """Hold nothing between calls."""
        assert because
        self.leaves = True
