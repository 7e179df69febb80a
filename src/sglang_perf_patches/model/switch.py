"""Whether anything is chosen: the part of the grammar that each process reads.

It imports nothing of the package: what is off costs a process this file.
"""

from __future__ import annotations

import os

VARIABLE = "SGLANG_PERF_PATCHES"
STRICT_VARIABLE = "SGLANG_PERF_PATCHES_STRICT"
OFF = frozenset({"", "none", "off", "0", "no", "false"})
"""What chooses nothing, in small letters; the bootstrap has the same words."""


def from_environment() -> str:
    """The text of the selection: ``all`` where the variable is not set."""
    return os.environ.get(VARIABLE, "all")


def strict_from_environment() -> bool:
    """Whether ``SGLANG_PERF_PATCHES_STRICT`` demands an exit instead of a warning."""
    return os.environ.get(STRICT_VARIABLE, "").strip().lower() in {"1", "true", "yes", "on"}


def is_off(text: str) -> bool:
    """Whether the text chooses nothing, without looking at any declaration."""
    return text.strip().lower() in OFF
