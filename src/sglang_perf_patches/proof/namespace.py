"""A stand-in for what holds options: arguments, configurations, runners."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NoneByDefault(SimpleNamespace):
    """A namespace in which an option that nobody set is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None
