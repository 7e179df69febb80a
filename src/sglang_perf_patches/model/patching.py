"""What the functions of a patch know of the process in which they run."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

from .state import RunFlag

MISSING: Any = object()
"""The value of an attribute that its owner does not have itself."""

Make = Callable[[Any], Any]
"""Makes the new attribute from the present one (`MISSING` where there is none)."""


class Gated(Exception):
    """Raised by a set-up: the patch does not support the situation of this process."""


class Patching(Protocol):
    """A patch in this process: the argument `patch` of its functions."""

    ran: RunFlag  # its changed code sets ``ran.seen = True``
    state: SimpleNamespace  # what its functions share

    def module(self, name: str) -> ModuleType:
        """An imported module, named in the variant's ``awaits``; else this raises RuntimeError."""

    def get(self, reference: str) -> Any:
        """The object that the owner's ``__dict__`` holds at a reference; `MISSING` if none."""

    def override(self, reference: str, make: Make) -> None:
        """Replace a declared target, or an added definition that other patches of ours add too.

        `make` takes the present value (stock's, or the lower layer's; of a static or class method
        the function) and returns the new one, which may call the old one. The new function gets the
        arguments as stock's signature binds them: positional parameters by position, with defaults
        filled in, keyword-only parameters by name.
        """

    def drain(self, is_idle: Callable[[], bool], waits_for: str) -> None:
        """Declare that the patch holds work between its calls, so it may only be removed when idle.

        Args:
            is_idle: whether it holds no work. Any thread may call it, also while patched calls run.
                It must only read a few attributes, and must not raise.
            waits_for: what ends the work, worded to follow "until".
        """

    def gate(self, reason: str) -> None:
        """Called by patched code that runs only stock's code from now on, with the reason."""
