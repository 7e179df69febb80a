"""A definition as read from source: its lines, its surroundings, and the digest of both."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..model.errors import OperatorError

Span = tuple[int, int]
"""First and last line of a piece of source, counted from 1."""

OF_NAME = "of "
"""Prefix of a default that is a name and not a literal; no literal's ``repr`` begins so."""


class TreeError(OperatorError, ValueError):
    """The path is not a sglang tree, or a file of it can't be read or parsed, or is missing."""


class ClassBody(NamedTuple):
    """A class whose attributes other code reads, or an import that re-exports one."""

    own: str  # the part digest of its source
    bases: Sequence[str]  # the reference of a class of sglang, the last name of any other
    constants: Mapping[str, str]  # name that its body assigns → part digest of the assignments


@dataclass(frozen=True, kw_only=True)
class Definition:
    """One definition as read from source, with what around it decides how it behaves."""

    reference: str  # "module:Qual.name"
    path: Path
    # Of each piece, with decorators. A property and its setter are two pieces of one name.
    lines: tuple[Span, ...]
    own: str  # sha256 of `text`, in hexadecimal
    decorators: int  # how many the last piece has
    is_class: bool
    is_function: bool  # also a coroutine function or a generator
    members: tuple[Definition, ...]  # the functions in the body of a class
    parts: Mapping[str, str]  # key of `PARTS` → digest of that part
    values: Mapping[str, str]  # literal that it reads: reference → ``repr``
    # Parameter → ``repr`` of a literal; or `OF_NAME` and a dotted name; "" for anything else.
    defaults: Mapping[str, str]
    # Of the class that it is, or is in: the last name of each, "" for an expression.
    bases: tuple[str, ...]
    # Constant of another file that it reads: reference → its name here, "" within a function only.
    imports: Mapping[str, str]
    # Class of sglang that it reads or inherits from: reference → the attributes.
    classes: Mapping[str, tuple[str, ...]]

    @property
    def digest(self) -> str:
        """The digests of its own source and of the parts around it."""
        parts = (f"{name}={self.parts[name]}" for name in PARTS if name in self.parts)
        return " ".join([self.own, *parts])

    @property
    def text(self) -> str:
        """The dedented source of all pieces; raises `TreeError` if the file is gone or changed."""
        text = text_of(lines_of(self.path), self.lines)
        if digest_of(text) != self.own:
            raise TreeError(f"{self.path} changed while it was read")
        return text


def lines_of(path: Path) -> list[str]:
    """The lines of a source file, decoded as Python does: by its BOM, its coding line, or UTF-8.

    CRLF line ends count as LF. It raises `TreeError` if the file can't be read.
    """
    import tokenize

    try:
        with tokenize.open(path) as file:
            return file.read().split("\n")
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        what = f"it is not {error.encoding.upper()} text"
        raise TreeError(f"{path} can't be read: {what}") from error
    except (SyntaxError, LookupError) as error:
        what = "it is not UTF-8 text and names no other encoding that fits"
        raise TreeError(f"{path} can't be read: {what}") from error


def unreadable(path: Path, error: OSError) -> TreeError:
    """The error for a path that can't be read."""
    return TreeError(f"{path} can't be read: {error.strerror or error}")


def text_of(lines: Sequence[str], spans: Sequence[Span]) -> str:
    """The dedented source of pieces of a file, joined by line breaks."""
    pieces = (textwrap.dedent("\n".join(lines[first - 1 : last])) for first, last in spans)
    return "\n".join(pieces)


def differing(known: str, actual: str) -> str:
    """The first part in which two digests differ, in words; "" if they are equal."""
    before, after = (
        dict(part.partition("=")[::2] for part in f"={digest}".split(" "))
        for digest in (known, actual)
    )
    for name, words in {"": "its source", **PARTS}.items():
        if before.get(name) != after.get(name):
            return words
    return ""


PARTS = {
    "header": "the header of a class around it",
    "values": "a value that it reads",
    "later": "what later lines of its file put in its place",
    "override": "which classes of its file override it",
    "imported": "a value that it reads from a class or another file",
}
"""Key → description of the parts of a digest that follow the definition's own source."""


def digest_of(text: str) -> str:
    """Sha256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def part_digest_of(text: str) -> str:
    """The first 12 digits of `digest_of`: the table in the package has many."""
    return digest_of(text)[:12]
