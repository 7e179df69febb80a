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
    """A class whose attributes other code reads, or an import that re-exports one.

    Attributes:
        own: the part digest of its source.
        bases: the reference of each base that is a class of sglang, the last name of any other.
        constants: name that its body assigns → part digest of the assignments.
    """

    own: str
    bases: Sequence[str]
    constants: Mapping[str, str]

    @property
    def is_enumeration(self) -> bool:
        """Whether a base is named like an enumeration of the standard library."""
        return any(":" not in base and base.endswith(("Enum", "Flag")) for base in self.bases)


@dataclass(frozen=True, kw_only=True)
class Definition:
    """One definition as read from source, with what around it decides how it behaves.

    Attributes:
        reference: ``"module:Qual.name"``.
        path: the file.
        lines: first line (decorators included) and last line of each piece. A name that is bound
            several times, such as a property and its setter, has several pieces.
        own: sha256 of `text`, in hexadecimal.
        decorators: the number of decorators of the last piece.
        is_class: whether it is a class.
        is_function: whether it is a function, also a coroutine function or a generator.
        members: the functions in the body of a class.
        parts: key of `PARTS` → digest of that part.
        values: literal that it reads: reference → ``repr``.
        defaults: parameter with a default: name → ``repr`` of a literal, or `OF_NAME` and a dotted
            name, or "" for any other expression.
        bases: the bases of the class that it is, or is in: the last name of each, "" for an
            expression that is no name.
        imports: constant of another file that it reads: reference → the name that its module gives
            it, "" if only a function imports it.
        classes: class of sglang whose attributes it reads, or from which it inherits: reference →
            the attributes.
    """

    reference: str
    path: Path
    lines: tuple[Span, ...]
    own: str
    decorators: int
    is_class: bool
    is_function: bool
    members: tuple[Definition, ...]
    parts: Mapping[str, str]
    values: Mapping[str, str]
    defaults: Mapping[str, str]
    bases: tuple[str, ...]
    imports: Mapping[str, str]
    classes: Mapping[str, tuple[str, ...]]

    @property
    def digest(self) -> str:
        """The digests of its own source and of the parts around it; two equal ones are the same."""
        parts = (f"{name}={self.parts[name]}" for name in PARTS if name in self.parts)
        return " ".join([self.own, *parts])

    @property
    def text(self) -> str:
        """The dedented source of all pieces, read from the file.

        Raises:
            TreeError: the file can't be read, or has changed since it was judged.
        """
        text = text_of(lines_of(self.path), self.lines)
        if digest_of(text) != self.own:
            raise TreeError(f"{self.path} changed while it was read")
        return text


def lines_of(path: Path) -> list[str]:
    """The lines of a source file, decoded as Python does: by its BOM, its coding line, or UTF-8.

    A file with CRLF line ends has the same lines as one with LF.

    Raises:
        TreeError: it can't be read.
    """
    import tokenize

    try:
        with tokenize.open(path) as file:
            return file.read().split("\n")
    except OSError as error:
        raise TreeError(f"{path} can't be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TreeError(f"{path} can't be read: it is not {error.encoding.upper()} text") from error
    except (SyntaxError, LookupError) as error:
        what = "it is not UTF-8 text and names no other encoding that fits"
        raise TreeError(f"{path} can't be read: {what}") from error


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
    for name in ("", *PARTS):
        if before.get(name) != after.get(name):
            return PARTS.get(name, "its source")
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
    """The first 12 digits of `digest_of`: shorter, because the table in the package has many."""
    return digest_of(text)[:12]
