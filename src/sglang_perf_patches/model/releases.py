"""The released sglang versions that the project knows."""

from __future__ import annotations

KNOWN = (
    "0.5.9",
    "0.5.10",
    "0.5.10.post1",
    "0.5.11",
    "0.5.12",
    "0.5.12.post1",
    "0.5.13",
    "0.5.13.post1",
    "0.5.14",
    "0.5.15",
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
"""Every release that a verdict is tested on, oldest first."""


def between(first: str, last: str) -> tuple[str, ...]:
    """The known releases from `first` to `last`, both included.

    >>> between("0.5.12", "0.5.13")
    ('0.5.12', '0.5.12.post1', '0.5.13')
    """
    return KNOWN[KNOWN.index(first) : KNOWN.index(last) + 1]
