"""Reads the tables of servers next to this file."""

from pathlib import Path
from string import Template


def rows(name: str, **short: str) -> list[list[str]]:
    """The cells of each row of a Markdown file's only table; ``$NAME`` stands for `short`."""
    text = Template(Path(__file__).with_name(name).read_text("utf-8")).substitute(short)
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
