"""Which measured figures the documents quote, and whether each is in the committed row it names.

A row of the results (``tests/benchmarks/results/SET.md``) that is quoted has an id,
``<a id="NAME"></a>``: in the first cell of a table's row, at the start of a paragraph, or alone on
a line before a whole table. Its section (see `pages`) gives its machine, release, command and date.

A document quotes it by a link, ``[4.06 ms](.../mla.md#NAME)``. The numbers of such a link, and
those of the other cells of its row in a table, must be in the row; they may have fewer decimals. A
figure with a unit, or a ratio, that is in no such row is unfounded. Numbers in code font are
settings and constants, not figures.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from . import pages
from .pages import Section

_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]*)#([\w.-]+)\)")
_OTHER_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]*`")
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:\.post\d+)?")
_GPUS = re.compile(r"\d+ \u00d7 (?=[A-Z])")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?")
_FIGURE = re.compile(
    r"(?<![\w.,])(?:\d[\d,]*(?:\.\d+)?\s?(?:ns|µs|ms|s|min|kB|MB|GB|KiB|MiB|GiB|%|times)(?!\w)"
    r"|[01]\.\d+(?![\w.]\w|\w))"
)


class Row(NamedTuple):
    """What an id stands for."""

    text: str  # the row, paragraph or table
    section: Section


def rows(root: Path, set_names: Sequence[str]) -> dict[tuple[str, str], Row]:
    """The rows with ids: file below a checkout and id → row."""
    by_id: dict[tuple[str, str], Row] = {}
    for name in set_names:
        for section in pages.all_sections(root, name):
            for row_id, text in _rows_of(section.text):
                if (section.file, row_id) in by_id:
                    raise ValueError(f"{section.file} has the id {row_id} twice")
                by_id[section.file, row_id] = Row(text, section)
    return by_id


def unfounded(
    text: str, file: str, known: Mapping[tuple[str, str], Row], patch_id: str = ""
) -> list[str]:
    """What a document quotes that no row of `rows` says, or of `patch_id` if that is given.

    `file` is where the document is, below a checkout.
    """
    wrong: list[str] = []
    for line in _lines(text):
        quoted = list(_quoted(line, file))
        row_texts = []
        for words, key in quoted:
            if key not in known:
                wrong.append(f"{file}: there is no row {key[1]} in {key[0]}")
                continue
            row = known[key]
            row_texts.append(row.text)
            on = row.section.on
            if patch_id and not {patch_id, patch_id.partition(".")[0]} & on.keys():
                wrong.append(f"{file}: {key[1]} was not measured of {patch_id}")
            if not line.startswith("|"):
                wrong += _missing(words, [row.text], f"{file}: {key[1]}")
        if line.startswith("|") and quoted:
            for cell in line.strip().strip("|").split(" | ")[1:]:
                wrong += _missing(cell, row_texts, f"{file}: {quoted[0][1][1]}")
        else:
            told = _OTHER_LINK.sub(r"\1", _CODE.sub("", _LINK.sub("", line)))
            told = _DATE.sub("", _VERSION.sub("", told))
            wrong += [
                f"{file}: {figure} has no row: {line[:60]}" for figure in _FIGURE.findall(told)
            ]
    return wrong


def is_in(quoted: str, among: Sequence[str]) -> bool:
    """Whether a number is among others, or is one of them with fewer decimals.

    >>> is_in("96", ["95.9"]), is_in("95.90", ["95.9"]), is_in("3,221", ["3221"])
    (True, False, True)
    """
    decimals = _decimals(quoted)
    value = float(quoted.replace(",", ""))
    return any(
        abs(float(each.replace(",", "")) - value) <= 0.5 * 10**-decimals + 1e-9
        if _decimals(each) > decimals
        else each.replace(",", "") == quoted.replace(",", "")
        for each in among
    )


def _decimals(number: str) -> int:
    return len(number.partition(".")[2])


def _missing(quoted: str, texts: Sequence[str], where: str) -> list[str]:
    """The numbers of a quote that the rows lack; a cell of 1 is what a ratio refers to."""
    if quoted.strip() == "1":
        return []
    there = [number for text in texts for number in numbers(text)]
    return [f"{where} has no {number}" for number in numbers(quoted) if not is_in(number, there)]


def numbers(text: str) -> list[str]:
    """The numbers of a text, without releases, dates, counts of GPUs and what is in code font."""
    text = _CODE.sub("", pages.ROW_ID.sub("", _LINK.sub(r"\1", text)))
    text = _GPUS.sub("", _DATE.sub("", _VERSION.sub("", text)))
    return _NUMBER.findall(text.replace("-", " "))


def _quoted(line: str, file: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """The links of a line to rows: their words, file and id."""
    for words, target, row_id in _LINK.findall(line):
        if "tests/" in target and not target.endswith("/tested.md"):
            place = posixpath.normpath(posixpath.join(posixpath.dirname(file), target))
            yield words, (place, row_id)


def _lines(text: str) -> Iterator[str]:
    """Rows of tables one by one, and each paragraph as one line; no code, no generated verdicts."""
    for block in re.split(r"\n\s*\n", text):
        if block.startswith("    ") or block.lstrip().startswith("```"):
            continue
        lines = block.split("\n")
        prose = " ".join(line.strip() for line in lines if not line.startswith("|"))
        if prose:
            yield prose
        yield from (line for line in lines if line.startswith("|"))


def _rows_of(text: str) -> Iterator[tuple[str, str]]:
    """Each id of a section, and what it stands for."""
    blocks = re.split(r"\n\s*\n", text)
    for block, following in zip(blocks, [*blocks[1:], ""], strict=True):
        for line in block.split("\n"):
            for row_id in pages.ROW_ID.findall(line):
                if block.startswith("|"):
                    yield row_id, line
                else:
                    yield row_id, block if pages.ROW_ID.sub("", block).strip() else following
