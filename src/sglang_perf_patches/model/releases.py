"""The released sglang versions that the project knows, and spans of them as text."""

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

SOURCE_BUILD = "git-"
"""Prefix of a source build's name; the commit follows."""

TO = " … "
"""Between the first release of a span and its last."""


def between(first: str, last: str) -> tuple[str, ...]:
    """The known releases from `first` to `last`, both included.

    >>> between("0.5.12", "0.5.13")
    ('0.5.12', '0.5.12.post1', '0.5.13')
    """
    return KNOWN[KNOWN.index(first) : KNOWN.index(last) + 1]


def from_spans(text: str) -> tuple[str, ...]:
    """The names in a line of ``known.json``: source builds, releases, and spans of them.

    >>> from_spans("git-5b9fbc51dcff, 0.5.9 … 0.5.10.post1, 0.5.13")
    ('git-5b9fbc51dcff', '0.5.9', '0.5.10', '0.5.10.post1', '0.5.13')

    Raises:
        ValueError: the text names an unknown release, or a span that ends before it starts.
    """
    names: list[str] = []
    for part in text.split(", "):
        if part.startswith(SOURCE_BUILD):
            names.append(part)
            continue
        first, to, last = part.partition(TO)
        within = between(first, last if to else first)
        if not within:
            raise ValueError(f"{part!r} ends before it starts")
        names += within
    return tuple(names)
