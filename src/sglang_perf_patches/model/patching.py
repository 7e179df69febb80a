"""What an install function gets and may raise. A set imports nothing else of the framework."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from .state import RunFlag

MISSING: Any = object()
"""Stands for an attribute that its owner does not have itself."""

Make = Callable[[Any], Any]
"""Makes the new attribute from the present one (`MISSING` where there is none)."""


class Gated(Exception):
    """Raised by an install function: the patch does not support the situation of this process."""


class Patching(Protocol):
    """The argument of an install function: names in, changes out. Nothing changes while it runs.

    Attributes:
        ran: the patch's run flag; its changed code sets ``ran.seen = True``.
    """

    ran: RunFlag

    def module(self, name: str) -> ModuleType:
        """A module that has been imported.

        Raises:
            RuntimeError: it has not; name it in the variant's ``awaits``.
        """
        ...

    def get(self, reference: str) -> Any:
        """The object under a reference: a class, or an attribute as its owner holds it."""
        ...

    def override(self, reference: str, make: Make) -> None:
        """Replace a declared target, or an added definition that another patch of ours may add too.

        Args:
            reference: as declared.
            make: takes the attribute as the layers below left it and returns the new one. Call its
                argument to run stock's code. What it returns is called as stock's own parameters
                bind a call: positional ones by position, with their defaults, keyword-only ones by
                name.
        """
        ...

    def add(self, reference: str, value: Any) -> None:
        """Add a declared new attribute."""
        ...

    def drain(self, is_idle: Callable[[], bool], waits_for: str) -> None:
        """The patch holds work between its calls, and may only be taken off while it holds none.

        Args:
            is_idle: whether it holds none. Any thread may ask, also while patched calls run: then
                it is asked again when none does. It reads a few attributes and does not raise.
            waits_for: what the patch waits for, after "until".
        """
        ...

    def anytime(self, because: str) -> None:
        """The patch may be taken off at any moment outside of its calls, and why."""
        ...

    def gate(self, reason: str) -> None:
        """Called at run time by changed code that from now on runs only stock's code, and why."""
        ...
