"""Statements of a scope, and the names in them. Imported only to parse a file."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import chain

from .definition import Span

Function = ast.FunctionDef | ast.AsyncFunctionDef
Named = Function | ast.ClassDef


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body at any depth, but not inside functions and classes in it."""
    for node in body:
        yield node
        if not isinstance(node, Named):
            for block in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, block, ()))
            for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                yield from statements(part.body)


def walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Some nodes, and all that is below them."""
    return chain.from_iterable(map(ast.walk, nodes))


def span(node: ast.stmt) -> Span:
    """First and last line of a statement, decorators included."""
    decorators = node.decorator_list if isinstance(node, Named) else []
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return first, node.end_lineno or node.lineno


def targets(node: ast.stmt) -> list[ast.expr]:
    """What a statement assigns to, annotates or deletes."""
    if isinstance(node, ast.Assign | ast.Delete):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []


def assigned(node: ast.stmt) -> Iterator[str]:
    """The plain names to which a statement assigns a value."""
    if getattr(node, "value", None) is not None:  # a bare annotation or ``del`` has none
        yield from (each.id for each in walk(targets(node)) if isinstance(each, ast.Name))


def dotted(node: ast.expr) -> list[str]:
    """``A.b.c`` as ``["A", "b", "c"]``; empty for any other expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []


def origins(nodes: Iterable[ast.AST], package: str) -> Iterator[tuple[str, str]]:
    """``(name, reference)`` of each name that these nodes import from sglang.

    Relative imports refer to `package`, the file's.
    """
    for node in nodes:
        if not isinstance(node, ast.ImportFrom):
            continue
        whence = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            whence = ".".join([*above, *whence.split(".")]).rstrip(".")
        if whence.partition(".")[0] == "sglang":
            yield from ((each.asname or each.name, f"{whence}:{each.name}") for each in node.names)
