"""A definition as its source has it: which lines they are, and what identifies them."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..model.errors import OperatorError

Span = tuple[int, int]
"""First and last line of a piece of source, counted from 1."""

OF_NAME = "of "
"""Begins what is said of a default that is named; no literal's ``repr`` begins so."""


class TreeError(OperatorError, ValueError):
    """The path is no sglang tree, or a file of it can't be read or parsed."""


class NoSourceError(TreeError):
    """A module is there, but not as source."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a definition means by what is around it.

    Attributes:
        parts: what else its meaning hangs on, by the keys of `PARTS` → a digest of that.
        values: the literals that it reads: reference → ``repr``.
        defaults: its parameters that have a default: name → ``repr`` of a literal, `OF_NAME` and
            the dotted name of another value, "" where it has none.
        bases: of the class that it is, or is in: the last name of each base, "" where it is no
            name.
        imports: the constants of other files that it reads: reference → the name that its own
            module has for one, "" where only a function has it.
        classes: the classes of sglang that it names an attribute of, or inherits from: reference →
            what it reads of each.
    """

    parts: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    bases: tuple[str, ...] = ()
    imports: Mapping[str, str] = field(default_factory=dict)
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class ClassBody:
    """A class as other code reads it, or an import that passes one on.

    Attributes:
        own: the part digest of its source.
        bases: a reference for each base that is a class of sglang, for others the last name.
        constants: the names that its body assigns → the part digest of the assignments.
    """

    own: str
    bases: tuple[str, ...] = ()
    constants: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_enumeration(self) -> bool:
        """Whether one of its own bases is, by its name, one of the standard library's."""
        return any(":" not in base and base.endswith(("Enum", "Flag")) for base in self.bases)


@dataclass(frozen=True, kw_only=True)
class Definition(Surroundings):
    """One definition as the source has it, with what is around it.

    Attributes:
        reference: ``"module:Qual.name"``.
        path: the file.
        lines: first line (decorators included) and last line of each piece: a name that is bound
            several times, as a property and its setter are, has several pieces.
        own: sha256 of `text`, in hexadecimal.
        decorators: how many decorators the last piece has.
        is_class: whether it is a class.
        is_function: whether it is a function, a coroutine function or a generator.
        members: the functions that its body defines, where it is a class.
    """

    reference: str
    path: Path
    lines: tuple[Span, ...]
    own: str
    decorators: int
    is_class: bool
    is_function: bool
    members: tuple[Definition, ...] = ()

    @property
    def digest(self) -> str:
        """What identifies it: its own source, and the parts around it."""
        parts = (f"{name}={self.parts[name]}" for name in PARTS if name in self.parts)
        return " ".join([self.own, *parts])

    @cached_property
    def text(self) -> str:
        """The dedented source of all pieces, read from the file.

        Raises:
            TreeError: the file can't be read, or is not what it was when it was judged.
        """
        text = text_of(lines_of(self.path), self.lines)
        if digest_of(text) != self.own:
            raise TreeError(f"{self.path} changed while it was read")
        return text


def lines_of(path: Path) -> list[str]:
    """The lines of a source file, decoded as Python does: by its BOM, its coding line, or UTF-8.

    Line ends count as Python counts them: a checkout with CRLF has the same lines.

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
    """The dedented source of pieces of a file, one after the other."""
    pieces = (textwrap.dedent("\n".join(lines[first - 1 : last])) for first, last in spans)
    return "\n".join(pieces)


def differing(known: str, actual: str) -> str:
    """In which part two digests of a definition differ, in words; "" if they are the same."""
    before, after = (
        dict(part.partition("=")[::2] for part in _split(digest)) for digest in (known, actual)
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
"""The parts of a digest, beside the source itself, and what they are of."""


def _split(digest: str) -> list[str]:
    own, *parts = digest.split(" ")
    return [f"={own}", *parts]


def digest_of(text: str) -> str:
    """What identifies the source of a definition."""
    return hashlib.sha256(text.encode()).hexdigest()


def part_digest_of(text: str) -> str:
    """What identifies a part around a definition: shorter, as the table holds many."""
    return digest_of(text)[:12]
