"""What around a definition decides how it behaves. Imported only to parse a file.

The same source behaves differently in a class with other bases, next to a constant of another
value, or if a later line of the file replaces it. So a digest of each of these is part of a
definition's digest, without a declaration naming them.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from . import elsewhere
from .definition import OF_NAME, Span, part_digest_of, text_of
from .statements import Function, Named, assigned, dotted, span, statements, targets, walk


def rebound_names(lines: Sequence[str], syntax: ast.Module) -> frozenset[str]:
    """The globals that functions of the file rebind, so that they have no constant value."""
    if not any("global" in line for line in lines):
        return frozenset()
    statements = (node for node in ast.walk(syntax) if isinstance(node, ast.Global))
    return frozenset(name for node in statements for name in node.names)


def surroundings(
    lines: Sequence[str],
    syntax: ast.Module,
    rebound: frozenset[str],
    reference: str,
    own: Sequence[ast.stmt],
    of_file: elsewhere.Names,
) -> dict[str, Any]:
    """The attributes of a `Definition` that are about what is around it.

    `own` are the statements that bind it, `rebound` its file's `rebound_names`.
    """
    module, _, qualname = reference.partition(":")
    *names, last = qualname.split(".")
    classes = _enclosing(syntax, names)
    read, attributes = _read_by(own)
    constants = _assignments(syntax, read)
    # An attribute could be read from any object, so by its name alone it counts as a field of each
    # class around. That can only refuse too much. The definition itself is no field of its class.
    fields = {
        f"{'.'.join(names[: depth + 1])}.{name}": bindings
        for depth, each in enumerate(classes)
        for name, bindings in _assignments(each, attributes | read).items()
        if not (depth == len(classes) - 1 and name == last)
    }
    read_here = constants | fields
    spans = {
        "header": [_header(each) for each in classes],
        "values": _spans(itertools.chain(*constants.values(), *fields.values())),
        "later": _spans(_later(syntax, names, last)),
    }
    texts = {name: text_of(lines, pieces) for name, pieces in spans.items()}
    texts["override"] = " ".join(sorted(_overriding(syntax, names[-1], last))) if names else ""
    literals = {name: _literal(read_here[name]) for name in read_here if name not in rebound}
    if not isinstance(own[-1], Named):
        literals[qualname] = _literal(own)
    values = {f"{module}:{name}": text for name, text in literals.items() if text is not None}
    return {
        "parts": {name: part_digest_of(text) for name, text in texts.items() if text},
        "values": values,
        "defaults": _defaults(own[-1]),
        "bases": _base_names([*classes, own[-1]]),
        "imports": elsewhere.constants(own, read, of_file),
        "classes": elsewhere.classes(own, classes, of_file),
    }


def _enclosing(syntax: ast.Module, names: Sequence[str]) -> list[ast.ClassDef]:
    enclosing: list[ast.ClassDef] = []
    for name in names:
        scope: ast.Module | ast.ClassDef = enclosing[-1] if enclosing else syntax
        classes = (each for each in statements(scope.body) if isinstance(each, ast.ClassDef))
        bound = [each for each in classes if each.name == name]
        if not bound:
            break
        enclosing.append(bound[-1])
    return enclosing


def _read_by(nodes: Iterable[ast.AST]) -> tuple[set[str], set[str]]:
    """The plain names and the attribute names that code reads."""
    names, attributes = set(), set()
    for each in walk(nodes):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            names.add(each.id)
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load):
            attributes.add(each.attr)
    return names, attributes


def _assignments(scope: ast.Module | ast.ClassDef, names: set[str]) -> dict[str, list[ast.stmt]]:
    """A scope's assignments to these names, and to the names that those read in turn."""
    of_name: dict[str, list[ast.stmt]] = {}
    for node in statements(scope.body):
        for name in assigned(node):
            of_name.setdefault(name, []).append(node)
    reached: dict[str, list[ast.stmt]] = {}
    waiting = sorted(names & set(of_name))
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached[name] = of_name[name]
            names_in_turn, _ = _read_by(of_name[name])
            waiting += sorted(names_in_turn & set(of_name))
    return reached


def _later(syntax: ast.Module, names: Sequence[str], last: str) -> list[ast.stmt]:
    """The statements of a file that replace a definition, or a class around it."""
    # They assign to (or delete) ``Class.method`` or an attribute of it, bind the class's name
    # again, or call ``setattr`` or ``delattr`` on the class. A second definition of the same name
    # is not among them: it is a piece of the definition itself.
    qualname = [*names, last]
    replacing: list[ast.stmt] = []
    for node in statements(syntax.body):
        chains = [chain for target in targets(node) if (chain := dotted(target))]
        if names and isinstance(node, Function | ast.Assign | ast.AnnAssign):
            bound = [node.name] if isinstance(node, Function) else list(assigned(node))
            if names[0] in bound:
                replacing.append(node)
                continue
        replaces = any(
            len(each) > 1 and (each == qualname[: len(each)] or each[: len(qualname)] == qualname)
            for each in chains
        )
        if replaces or (isinstance(node, ast.Expr) and _sets_attribute(node.value, qualname[0])):
            replacing.append(node)
    return replacing


def _sets_attribute(call: ast.expr, name: str) -> bool:
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in {"setattr", "delattr"}
        and bool(call.args)
        and dotted(call.args[0])[:1] == [name]
    )


def _overriding(syntax: ast.Module, base: str, method: str) -> set[str]:
    """The subclasses of a class in the same file that override a method."""
    classes = [node for node in statements(syntax.body) if isinstance(node, ast.ClassDef)]
    # Until nothing is added: a subclass may stand after its own subclass.
    family = {base}
    while subclasses := {each.name for each in classes if family & _bases(each)} - family:
        family |= subclasses
    return {
        each.name
        for each in classes
        if each.name in family - {base}
        and any(isinstance(node, Function) and node.name == method for node in each.body)
    }


def _bases(node: ast.ClassDef) -> set[str]:
    return {chain[-1] for base in node.bases if (chain := dotted(base))}


def _base_names(nodes: Iterable[ast.stmt]) -> tuple[str, ...]:
    """The last name of each base of the innermost class, "" for any other expression."""
    *_, bases = [[], *(node.bases for node in nodes if isinstance(node, ast.ClassDef))]
    return tuple(chain[-1] if (chain := dotted(base)) else "" for base in bases)


def _header(node: ast.ClassDef) -> Span:
    parts = [*node.decorator_list, *node.bases, *(each.value for each in node.keywords)]
    first, _ = span(node)
    last = max([node.lineno, *(each.end_lineno or 0 for each in parts)])
    return first, last


def _spans(nodes: Iterable[ast.stmt]) -> list[Span]:
    return sorted({(node.lineno, node.end_lineno or node.lineno) for node in nodes})


def _literal(nodes: Sequence[ast.stmt]) -> str | None:
    """The ``repr`` of the literal that a name is bound to; None if it is bound otherwise."""
    if len(nodes) != 1 or not isinstance(nodes[0], ast.Assign | ast.AnnAssign):
        return None
    is_plain = isinstance(nodes[0], ast.AnnAssign) or isinstance(nodes[0].targets[0], ast.Name)
    return _repr(nodes[0].value) if is_plain else None


def _repr(node: ast.expr | None) -> str | None:
    if node is None:
        return None
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    # Only immutable values: stock itself may change a list, so memory may differ from source.
    return repr(value) if isinstance(value, int | float | str | bytes | tuple | None) else None


def _defaults(node: ast.stmt) -> dict[str, str]:
    if not isinstance(node, Function):
        return {}
    of = node.args
    names = [*of.posonlyargs, *of.args, *of.kwonlyargs]
    without = len(names) - len(of.defaults) - len(of.kw_defaults)
    pairs = zip(names[without:], [*of.defaults, *of.kw_defaults], strict=True)
    return {name.arg: _default(default) for name, default in pairs if default is not None}


def _default(node: ast.expr) -> str:
    text = _repr(node)
    if text is not None:
        return text
    names = dotted(node)
    return f"{OF_NAME}{'.'.join(names)}" if names else ""
