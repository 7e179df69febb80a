"""The definitions of one source file, from its syntax. Imported only to parse a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..model.patch import qualname_of
from .definition import ClassBody, TreeError, digest_of, lines_of, text_of
from .elsewhere import Names, class_body
from .statements import Function, Named, span, statements, walk
from .surroundings import rebound_names, surroundings

_Scope = ast.Module | ast.ClassDef


class Module:
    """The text and syntax of one file; what its methods return can be written as JSON.

    It raises `TreeError` if the file can't be read or parsed.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.lines = lines_of(path)
        try:
            self.syntax = ast.parse("\n".join(self.lines))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
            raise TreeError(f"{path} can't be parsed{where}: {type(error).__name__}") from error
        self._names = Names(self.syntax, name, is_package=path.name == "__init__.py")
        self._rebound = rebound_names(self.lines, self.syntax)

    def definition(self, reference: str) -> dict[str, Any] | None:
        """The attributes of the `Definition` at a reference, without its path; None if none."""
        pieces = self._pieces(reference)
        if not pieces:
            return None
        last = pieces[-1]
        body = last.body if isinstance(last, ast.ClassDef) else []
        members = [f"{reference}.{node.name}" for node in body if isinstance(node, Function)]
        spans = [span(node) for node in pieces]
        return {
            **surroundings(self.lines, self.syntax, self._rebound, reference, pieces, self._names),
            "lines": spans,
            "own": digest_of(text_of(self.lines, spans)),
            "decorators": len(last.decorator_list) if isinstance(last, Named) else 0,
            "is_class": isinstance(last, ast.ClassDef),
            "is_function": isinstance(last, Function),
            "members": {member: self.definition(member) for member in members},
        }

    def class_body(self, reference: str) -> ClassBody | None:
        """The class at a reference, or the import that re-exports one; None if neither."""
        pieces = self._pieces(reference)
        name = qualname_of(reference)
        return class_body(self.lines, pieces[-1], name, self._names) if pieces else None

    def _pieces(self, reference: str) -> list[ast.stmt]:
        """The statements that bind or delete the name of a reference, in order."""
        nodes: Sequence[ast.stmt | ast.Module] = [self.syntax]
        for name in qualname_of(reference).split("."):
            scopes = [node for node in nodes if isinstance(node, _Scope)]
            inside = [node for scope in scopes for node in statements(scope.body)]
            nodes = [node for node in inside if name in _bound_by(node)]
        return [node for node in nodes if isinstance(node, ast.stmt)]


def _bound_by(node: ast.stmt) -> Iterator[str]:
    """The names that a statement itself binds, without those of the statements inside it."""
    if isinstance(node, Named):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    else:
        inside = (ast.stmt, ast.ExceptHandler, ast.match_case)
        parts = [part for part in ast.iter_child_nodes(node) if not isinstance(part, inside)]
        for part in walk(parts):
            if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
                yield part.id
        yield from (handler.name for handler in getattr(node, "handlers", ()) if handler.name)
