"""TO WRITE."""

from __future__ import annotations

from ....proof import Check

PATCH = "swa.window-metadata"

CHECKS: dict[str, Check] = {}
"""TO WRITE."""
