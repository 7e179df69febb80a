"""The released sglang versions that the project knows, and spans of them as text."""

from __future__ import annotations

import re
from functools import cache

RELEASED = {
    "0.5.9": "2026-02-23",
    "0.5.10": "2026-04-05",
    "0.5.10.post1": "2026-04-08",
    "0.5.11": "2026-05-07",
    "0.5.12": "2026-05-16",
    "0.5.12.post1": "2026-05-23",
    "0.5.13": "2026-06-11",
    "0.5.13.post1": "2026-06-15",
    "0.5.14": "2026-06-26",
    "0.5.15": "2026-07-10",
    "0.5.15.post1": "2026-07-14",
    "0.5.16": "2026-07-25",
    "0.5.17": "2026-08-08",
    "0.5.18": "2026-08-21",
    "0.5.19": "2026-09-04",
    "0.5.20": "2026-09-18",
    "0.5.21": "2026-10-01",
    "0.5.22": "2026-10-16",
    "0.5.23": "2026-10-30",
}
"""Release → the day on which the package index got it."""

KNOWN = tuple(RELEASED)
"""Every release that a verdict is tested on, oldest first."""

_OLDEST = tuple(map(int, KNOWN[0].split(".")[:3]))
SOURCE_BUILD = "git-"  # prefix of a source build's name; the commit follows
TO = " … "  # between the first release of a span and its last


def supported_until(release: str) -> str:
    """The day until which we support a release, a year after it; "" for an unknown one.

    >>> supported_until("0.5.9")
    '2027-02-23'
    """
    day = RELEASED.get(release, "")
    return day and f"{int(day[:4]) + 1}{day[4:]}"


def is_too_old(release: str) -> bool:
    """Whether a release is older than every known one; one whose name can't be read is not.

    >>> is_too_old("0.5.8.post1"), is_too_old("0.5.9"), is_too_old("0.5.10rc1"), is_too_old("dev")
    (True, False, False, False)
    """
    number = re.match(r"(\d+)\.(\d+)\.(\d+)", release)
    return number is not None and tuple(map(int, number.groups())) < _OLDEST


def between(first: str, last: str) -> tuple[str, ...]:
    """The known releases from `first` to `last`, both included.

    >>> between("0.5.12", "0.5.13")
    ('0.5.12', '0.5.12.post1', '0.5.13')
    """
    return KNOWN[KNOWN.index(first) : KNOWN.index(last) + 1]


@cache  # most definitions share a few spans, and every server reads them all
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
