"""Whether any patch is selected at all.

It imports nothing of the package, so with every patch off a process imports only this.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLE = "SGLANG_PERF_PATCHES"
STRICT_VARIABLE = "SGLANG_PERF_PATCHES_STRICT"
OFF = frozenset({"", "none", "off", "0", "no", "false"})
"""Texts, in lower case, that select nothing; `bootstrap.sitecustomize` has the same list."""


def from_environment() -> str:
    """The text of ``SGLANG_PERF_PATCHES``; ``all`` if it is not set."""
    return os.environ.get(VARIABLE, "all")


def is_strict(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether ``SGLANG_PERF_PATCHES_STRICT`` is on: exit instead of warning."""
    return environment.get(STRICT_VARIABLE, "").strip().lower() in {"1", "true", "yes", "on"}


def is_off(text: str) -> bool:
    """Whether the text selects nothing; reads no declarations."""
    return text.strip().lower() in OFF
