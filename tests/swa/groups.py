"""The releases that the swa tests run on, and the selections of patches."""

from __future__ import annotations

GROUPS = (
    "0.5.9",
    "0.5.10.post1",
    "0.5.11",
    "0.5.12",
    "0.5.12.post1",
    "0.5.13.post1",
    "0.5.14",
    "0.5.15.post1",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)
"""The newest release of each group: 0.5.10, 0.5.13 and 0.5.15 differ in nothing here."""

EXACT = "swa"
ALL = "swa,swa.window-bounded-admission,swa.evict-before-retract"
