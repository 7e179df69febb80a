"""The cases of the mamba set."""

from __future__ import annotations

from .. import Case

CASES: tuple[Case, ...] = ()


def prepare() -> None:
    """Make this process fit for the cases, before sglang is imported."""
