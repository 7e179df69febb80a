"""Reading a sglang tree as text: where it is, which version, and what its definitions say.

Nothing here imports sglang. A definition is identified by the sha256 of its own dedented source,
decorators included and comments as they are, so a change elsewhere in the file does not matter.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path

from ..model.patch import module_of, qualname_of

_Scope = ast.Module | ast.ClassDef
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Named = _Function | ast.ClassDef


class TreeError(ValueError):
    """The path is no sglang tree, or a file of it can't be read or parsed."""


@dataclass(frozen=True)
class Definition:
    """One definition as the source has it.

    Attributes:
        reference: ``"module:Qual.name"``.
        path: the file.
        lines: first line (decorators included) and last line of each piece: a name that is bound
            several times, as a property and its setter are, has several pieces.
        text: the dedented source of all pieces.
        decorators: how many decorators the last piece has.
        is_class: whether it is a class.
        members: the functions that its body defines, where it is a class.
    """

    reference: str
    path: Path
    lines: tuple[tuple[int, int], ...]
    text: str
    decorators: int
    is_class: bool
    members: tuple[Definition, ...] = ()

    @cached_property
    def digest(self) -> str:
        """sha256 of `text`, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def find(path: str | Path) -> Path:
    """The ``sglang`` package at `path`: the package itself, its parent, or a checkout.

    Raises:
        TreeError: there is none.
    """
    given = Path(path)
    try:
        for candidate in (given / "python" / "sglang", given / "sglang", given):
            if (candidate / "srt").is_dir() and (candidate / "__init__.py").is_file():
                return candidate.resolve()
    except OSError as error:
        raise TreeError(f"{given} can't be read: {error.strerror or error}") from error
    raise TreeError(f"{given} is not a sglang tree: no sglang package with a folder 'srt' is there")


def find_installed() -> Path:
    """The ``sglang`` package that this interpreter would import, without importing it.

    Raises:
        TreeError: there is none.
    """
    try:
        spec = importlib.util.find_spec("sglang")
    except (ImportError, ValueError):
        spec = None
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / "srt").is_dir():
            return Path(place).resolve()
    raise TreeError("sglang is not installed for this Python")


class Tree:
    """A sglang package on disk, read lazily: each file, and each definition in it, once."""

    def __init__(self, root: Path) -> None:
        """Take `root`, the package folder itself: see `find`."""
        self.root = root
        self._modules: dict[str, _Module | None] = {}
        self._definitions: dict[str, Definition | None] = {}

    @cached_property
    def version(self) -> str:
        """The version as the tree or its metadata says it, ``"unknown"`` where neither does."""
        for name in ("_version.py", "version.py"):
            try:
                text = (self.root / name).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            found = re.search(r"^__version__\s*=[^'\"\n]*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
            if found:
                return found[1]
        for distribution in metadata.distributions(name="sglang", path=[str(self.root.parent)]):
            return distribution.version
        return "unknown"

    def path(self, module: str) -> Path | None:
        """The file of a module such as ``sglang.srt.utils``, or None.

        Raises:
            TreeError: a folder on the way can't be read.
        """
        below = self.root.joinpath(*module.split(".")[1:])
        try:
            for candidate in (below.with_suffix(".py"), below / "__init__.py"):
                if candidate.is_file():
                    return candidate
        except OSError as error:
            raise TreeError(f"{below} can't be read: {error.strerror or error}") from error
        return None

    def definition(self, reference: str) -> Definition | None:
        """What the tree has under a reference; None where the module or the name is missing.

        Raises:
            TreeError: the file can't be read or parsed.
        """
        if reference not in self._definitions:
            self._definitions[reference] = self._look_up(reference)
        return self._definitions[reference]

    def _look_up(self, reference: str) -> Definition | None:
        name = module_of(reference)
        if name not in self._modules:
            path = self.path(name)
            self._modules[name] = _Module(path) if path else None
        module = self._modules[name]
        try:
            return module.definition(reference) if module else None
        except RecursionError as error:
            raise TreeError(f"{self.path(name)} is nested too deep") from error


class _Module:
    """The text and syntax of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Universal newlines: a checkout with CRLF line ends has the same definitions. Python
            # ends a line nowhere else, where `splitlines` would.
            text = path.read_text(encoding="utf-8")
            self.lines = text.split("\n")
            self.syntax = ast.parse(text)
        except OSError as error:
            raise TreeError(f"{path} can't be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise TreeError(f"{path} can't be read: it is not UTF-8 text") from error
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
            raise TreeError(f"{path} can't be parsed{where}: {type(error).__name__}") from error

    def definition(self, reference: str) -> Definition | None:
        nodes: Sequence[ast.stmt | ast.Module] = [self.syntax]
        for name in qualname_of(reference).split("."):
            scopes = [node for node in nodes if isinstance(node, _Scope)]
            nodes = [found for scope in scopes for found in _bindings(scope.body, name)]
        pieces = [node for node in nodes if isinstance(node, ast.stmt)]
        if not pieces:
            return None
        last = pieces[-1]
        members: list[Definition | None] = []
        if isinstance(last, ast.ClassDef):
            functions = [node for node in last.body if isinstance(node, _Function)]
            names = dict.fromkeys(node.name for node in functions)
            members = [self.definition(f"{reference}.{name}") for name in names]
        spans = tuple((_first_line(node), node.end_lineno or node.lineno) for node in pieces)
        return Definition(
            reference=reference,
            path=self.path,
            lines=spans,
            text="\n".join(
                textwrap.dedent("\n".join(self.lines[first - 1 : end])) for first, end in spans
            ),
            decorators=len(last.decorator_list) if isinstance(last, _Named) else 0,
            is_class=isinstance(last, ast.ClassDef),
            members=tuple(member for member in members if member),
        )


def _bindings(body: Sequence[ast.stmt], name: str) -> Iterator[ast.stmt]:
    """Statements of a body that bind `name`, or take it away, at any depth but in other scopes."""
    for node in body:
        if name in _bound_by(node):
            yield node
        elif not isinstance(node, _Named):
            for block in ("body", "orelse", "finalbody"):
                yield from _bindings(getattr(node, block, ()), name)
            for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                yield from _bindings(part.body, name)


def _bound_by(node: ast.stmt) -> Iterator[str]:
    """The names that a statement binds by itself, not those that statements inside it bind."""
    if isinstance(node, _Named):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    else:
        inside = [ast.stmt, ast.ExceptHandler, ast.match_case]
        parts = [part for part in ast.iter_child_nodes(node) if not isinstance(part, tuple(inside))]
        for part in [found for child in parts for found in ast.walk(child)]:
            if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
                yield part.id
        yield from (handler.name for handler in getattr(node, "handlers", ()) if handler.name)


def _first_line(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, _Named) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])
