"""A patch's page: the Markdown file next to its code, which `explain` shows as plain text.

Every page has the same sections. Blocks between ``<!-- NAME -->`` and
``<!-- /NAME -->`` are generated from the declaration; the rest is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from .model.patch import Patch, room_of
from .model.releases import KNOWN

FOLDER = Path(__file__).parent / "sets"  # of the patches' packages, each with its page
USE_IT_IF = "**Use it if** "  # begins the paragraph that says who gains and who does not
ONE = "1 GPU"
WORDS: Mapping[str, str] = {
    "TP": "tensor-parallel",
    "MTP": "eagle",
    "EP": "expert-parallel",
    "DP attention": "dp-attention",
    "hierarchical cache": "hierarchical-cache",
}
"""The words of the "works with" columns, also in the README → the feature (see `model.setups`)."""

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_BLOCK = re.compile(r"<!-- ([\w ]+) -->\n.*?<!-- /\1 -->\n?", re.DOTALL)
_HEADING = re.compile(r"^## (.+)\n", re.MULTILINE)
_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
_MEASURED = re.compile(r"\(([\w.]+), [^()]*\)$")
_NUMBERS = rf"{_NUMBER}(?:(?:, | and ){_NUMBER})*"
_SIDES = re.compile(rf"({_NUMBERS})[^\d→]*→ ({_NUMBERS})")


class Headline(NamedTuple):
    """A patch in three phrases: a row of the table below `USE_IT_IF`."""

    uses: str  # what a server must use for the patch to do anything
    # ``STOCK → PATCHED`` or ``RATIO of …``, with ``(RELEASE, MACHINE)`` at the end; or words.
    # Several figures for a side are one per boot.
    gain: str
    cost: str

    @property
    def release(self) -> str:
        """The release of the measurement; "" without one."""
        measured = _MEASURED.search(self.gain)
        return measured[1] if measured else ""

    @property
    def ratio(self) -> float:
        """The gain as a ratio below 1, smaller for better; 1 if the gain has no figure."""
        if sides := _SIDES.match(self.gain):
            less, more = sorted(map(_mean, sides.groups()))
            return less / more
        first = re.match(_NUMBER, self.gain)
        return float(first[0]) if first else 1.0


class Page(NamedTuple):
    """The handwritten part of a page: its sections, as Markdown without links and emphasis."""

    condition: str = ""  # who gains, and who does not
    gain: str = ""
    cost: str = ""
    why: str = ""
    how: str = ""
    goes_when: str = ""
    headlines: tuple[Headline, ...] = ()  # by release, the newest first, and set-up

    def headline(self, release: str) -> Headline | None:
        """The row that was measured nearest to a release; the first for an unknown release."""

        def distance(one: Headline) -> int:
            both = {one.release, release} <= {*KNOWN}
            return abs(KNOWN.index(one.release) - KNOWN.index(release)) if both else len(KNOWN)

        return min(self.headlines, key=distance, default=None)


def _mean(figures: str) -> float:
    each = [float(one.replace(",", "")) for one in re.split(", | and ", figures)]
    return sum(each) / len(each)


def upstream_links(patch: Patch) -> list[str]:
    """The addresses of a patch's pull requests."""
    parts = (name.partition("#") for name in patch.upstream)
    return [f"https://github.com/{project}/pull/{number}" for project, _, number in parts]


def path(patch_id: str) -> Path:
    """The file of a patch's page."""
    return FOLDER.joinpath(*room_of(patch_id).split(".")) / "README.md"


def read(patch_id: str) -> Page:
    """The page of a patch; an empty one if there is none or it lacks these sections."""
    try:
        return parse(path(patch_id).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return Page()


def parse(text: str) -> Page:
    """Parse the Markdown of a page."""
    head, *parts = _HEADING.split(plain(_BLOCK.sub("", text)))
    sections = dict(zip(parts[::2], map(str.strip, parts[1::2]), strict=True))
    condition, _, table = head.partition(plain(USE_IT_IF))[2].partition("\n|")
    return Page(
        condition=condition.strip(),
        gain=sections.get("What you gain", ""),
        cost=sections.get("What it costs", ""),
        why=sections.get("Why", ""),
        how=sections.get("How", ""),
        goes_when=sections.get("Obsolete when", ""),
        headlines=tuple(Headline(*row) for row in rows(f"|{table}")[1:]),
    )


def plain(text: str) -> str:
    """Links, code and emphasis become their words."""
    return words(text).replace("`", "")


def rows(text: str) -> tuple[tuple[str, ...], ...]:
    """The rows of a Markdown table, without the line below the heading; empty without a table."""
    cells = [
        tuple(words(cell.strip()) for cell in line.strip().strip("|").split(" | "))
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return tuple(row for row in cells if not all(set(cell) <= set("-: ") and cell for cell in row))


def words(text: str) -> str:
    """Links and emphasis become their words; code keeps its marks."""
    return _LINK.sub(r"\1", text).replace("**", "")


def works_with(patches: Mapping[str, Patch], *ids: str) -> tuple[str, ...]:
    """`ONE`, and the words for what patches that are on together were all proven with."""
    together = [patches[name] for id in ids for name in (id, *patches[id].requires)]
    proven = [patch.proven_with for patch in together if patch.proven_with is not None]
    return (ONE, *(word for word, name in WORDS.items() if all(name in each for each in proven)))
