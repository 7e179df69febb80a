"""Arguments of a server that the cases are played with, beside those that they give themselves."""

from __future__ import annotations

from typing import Any

MORE: dict[str, Any] = {}
"""Set by who plays the cases in another set-up than they have by themselves."""

MADE: list[Any] = []
"""The server arguments that cases were played with, in the order in which they were made."""


def noted(arguments: Any) -> Any:
    """The same arguments; they are kept in `MADE`."""
    MADE.append(arguments)
    return arguments
