"""The definitions of one source file, from its syntax. Imported only to parse a file.

The same source behaves differently in a class with other bases, next to a constant of another
value, or if a later line of the file replaces it. So a digest of each of these is part of a
definition's digest, without a declaration naming them.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..model.patch import qualname_of
from .definition import (
    OF_NAME,
    ClassBody,
    Span,
    TreeError,
    digest_of,
    lines_of,
    part_digest_of,
    text_of,
)

FORWARD_MODE = "sglang.srt.model_executor.forward_batch_info:ForwardMode"
"""The enumeration of which everything named ``forward_mode`` in stock is a member."""
SETTINGS, DEFAULTS = "sglang.srt.environ:envs", "sglang.srt.environ:Envs"
"""Stock's object for environment variables, and the class that declares their defaults."""

_CONSTANT = re.compile("_?[A-Z][A-Z0-9_]*")
_CLASS = re.compile("_*[A-Z]")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Named = Function | ast.ClassDef
Scope = ast.Module | ast.ClassDef


class Module:
    """The text and syntax of one file; what its methods return can be written as JSON.

    It raises `TreeError` if the file can't be read or parsed.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._name = name
        self._package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self._lines = lines_of(path)
        text = "\n".join(self._lines)
        try:
            self._syntax = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
            raise TreeError(f"{path} can't be parsed{where}: {type(error).__name__}") from error
        there = list(_statements(self._syntax.body))
        self._imported = self._origins(there)
        classes = (node.name for node in there if isinstance(node, ast.ClassDef))
        self._references = {**dict(self._imported), **{each: f"{name}:{each}" for each in classes}}
        # Functions of the file rebind these globals, so they have no constant value.
        nodes = ast.walk(self._syntax) if "global" in text else ()
        rebinding = (node.names for node in nodes if isinstance(node, ast.Global))
        self._rebound = frozenset(itertools.chain.from_iterable(rebinding))

    def definition(self, reference: str) -> dict[str, Any] | None:
        """The attributes of the `Definition` at a reference, without its path; None if none."""
        pieces = self._pieces(reference)
        if not pieces:
            return None
        last = pieces[-1]
        body = last.body if isinstance(last, ast.ClassDef) else []
        members = [f"{reference}.{node.name}" for node in body if isinstance(node, Function)]
        spans = [_span(node) for node in pieces]
        return {
            **self._surroundings(qualname_of(reference), pieces),
            "lines": spans,
            "own": digest_of(text_of(self._lines, spans)),
            "decorators": len(last.decorator_list) if isinstance(last, Named) else 0,
            "is_class": isinstance(last, ast.ClassDef),
            "is_function": isinstance(last, Function),
            "members": {member: self.definition(member) for member in members},
        }

    def class_body(self, reference: str) -> ClassBody | None:
        """The class at a reference, or the import that re-exports one; None if neither."""
        node = next(reversed(self._pieces(reference)), None)
        if isinstance(node, ast.ImportFrom):
            origin = dict(self._origins([node])).get(qualname_of(reference))
            return ClassBody(part_digest_of(origin), (origin,), {}) if origin else None
        if not isinstance(node, ast.ClassDef):
            return None
        bases = [_dotted(base) for base in node.bases]
        assignments: dict[str, list[Span]] = {}
        for each in _statements(node.body):
            for target in _assigned(each):
                assignments.setdefault(target, []).append(_span(each))
        return ClassBody(
            part_digest_of(text_of(self._lines, [_span(node)])),
            tuple(self._references.get(".".join(base), base[-1]) for base in bases if base),
            {name: part_digest_of(text_of(self._lines, on)) for name, on in assignments.items()},
        )

    def _pieces(self, reference: str) -> list[ast.stmt]:
        """The statements that bind or delete the name of a reference, in order."""
        nodes: Sequence[ast.stmt | ast.Module] = [self._syntax]
        for name in qualname_of(reference).split("."):
            scopes = [node for node in nodes if isinstance(node, Scope)]
            inside = [node for scope in scopes for node in _statements(scope.body)]
            nodes = [node for node in inside if name in _bound_by(node)]
        return [node for node in nodes if isinstance(node, ast.stmt)]

    def _surroundings(self, qualname: str, own: Sequence[ast.stmt]) -> dict[str, Any]:
        """The attributes of a `Definition` that are about what is around its statements."""
        *names, last = qualname.split(".")
        around = _enclosing(self._syntax, names)
        inner = own[-1] if isinstance(own[-1], ast.ClassDef) else (around[-1] if around else None)
        read = _names_read(own)
        constants = _assignments(self._syntax, read)
        # An attribute could be read from any object, so by its name alone it counts as a field of
        # each class around. That can only refuse too much. The definition itself is no field.
        attributes = {name for _, name in _attributes_read(own)}
        fields = {
            f"{'.'.join(names[: depth + 1])}.{name}": bindings
            for depth, each in enumerate(around)
            for name, bindings in _assignments(each, attributes | read).items()
            if not (depth == len(around) - 1 and name == last)
        }
        read_here = constants | fields
        spans = {
            "header": [_header(each) for each in around],
            "values": _spans(itertools.chain.from_iterable(read_here.values())),
            "later": _spans(_later(self._syntax, names, last)),
        }
        texts = {name: text_of(self._lines, pieces) for name, pieces in spans.items()}
        overriding = _overriding(self._syntax, names[-1], last) if names else set()
        texts["override"] = " ".join(sorted(overriding))
        bound = {name: read_here[name] for name in read_here if name not in self._rebound}
        if not isinstance(own[-1], Named):
            bound[qualname] = [*own]
        literals = {f"{self._name}:{name}": _literal(nodes) for name, nodes in bound.items()}
        return {
            "parts": {name: part_digest_of(text) for name, text in texts.items() if text},
            "values": {name: text for name, text in literals.items() if text is not None},
            "defaults": _defaults(own[-1]),
            "bases": tuple(_base_names(inner)) if inner else (),
            "imports": self._constants(own, read),
            "classes": self._classes(own, {each.name for each in around}, inner),
        }

    def _constants(self, own: Sequence[ast.stmt], read: set[str]) -> dict[str, str]:
        """Constants (by the convention for their names) and settings that come from other files.

        They are among the names `read` by the statements `own`: reference → the name that the
        module gives it, "" if only the definition imports it.
        """
        local = self._origins(_walk(own))
        # A definition that is itself an import re-exports what it imports.
        read = read.union(name for name, _ in self._origins(own))
        found = {reference: "" for name, reference in local if name in read}
        found |= {reference: name for name, reference in self._imported if name in read}
        found = {each: found[each] for each in found if _CONSTANT.fullmatch(qualname_of(each))}
        references = self._references | dict(local)
        for base, name in _attributes_read(own):
            if references.get(base) == SETTINGS:
                found[f"{DEFAULTS}.{name}"] = ""
        return found

    def _classes(
        self, own: Sequence[ast.stmt], around: Collection[str], inner: ast.ClassDef | None
    ) -> dict[str, tuple[str, ...]]:
        """The classes of sglang that a definition reads: reference → the attributes.

        `around` are the names of the classes around it, and `inner` is the innermost class.
        """
        references = self._references | dict(self._origins(_walk(own)))
        read: dict[str, set[str]] = {}
        inherited = set()
        for base, name in _attributes_read(own):
            if base in {"self", "cls", "super", "type"}:
                inherited.add(name)
            elif _CLASS.match(base) and base not in around:
                read.setdefault(references.get(base, ""), set()).add(name)
            # ``batch.forward_mode.is_extend()`` reads the enumeration without naming it.
            if base.endswith("forward_mode") or name.endswith("forward_mode"):
                read.setdefault(FORWARD_MODE, set())
        if inner:
            inherited.difference_update(*map(_defined, _statements(inner.body)))
            for each in inner.bases:
                reference = self._references.get(".".join(_dotted(each)), "")
                read.setdefault(reference, set()).update(inherited)
        return {name: tuple(sorted(read[name])) for name in sorted(read) if name}

    def _origins(self, nodes: Iterable[ast.AST]) -> list[tuple[str, str]]:
        """``(name, reference)`` of each name that nodes import from another file of sglang."""
        found = []
        for node in nodes:
            if not isinstance(node, ast.ImportFrom):
                continue
            whence = node.module or ""
            if node.level:
                package = self._package.split(".")
                above = package[: len(package) - node.level + 1]
                whence = ".".join([*above, *whence.split(".")]).rstrip(".")
            if whence.partition(".")[0] == "sglang" and whence != self._name:
                found += [(to.asname or to.name, f"{whence}:{to.name}") for to in node.names]
        return found


def _bound_by(node: ast.stmt) -> Iterator[str]:
    """The names that a statement itself binds, without those of the statements inside it."""
    if isinstance(node, Named):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    else:
        inside = (ast.stmt, ast.ExceptHandler, ast.match_case)
        parts = [part for part in ast.iter_child_nodes(node) if not isinstance(part, inside)]
        for part in _walk(parts):
            if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
                yield part.id
        yield from (handler.name for handler in getattr(node, "handlers", ()) if handler.name)


def _enclosing(syntax: ast.Module, names: Sequence[str]) -> list[ast.ClassDef]:
    enclosing: list[ast.ClassDef] = []
    for name in names:
        scope: Scope = enclosing[-1] if enclosing else syntax
        classes = (each for each in _statements(scope.body) if isinstance(each, ast.ClassDef))
        bound = [each for each in classes if each.name == name]
        if not bound:
            break
        enclosing.append(bound[-1])
    return enclosing


def _assignments(scope: Scope, names: set[str]) -> dict[str, list[ast.stmt]]:
    """A scope's assignments to these names, and to the names that those read in turn."""
    of_name: dict[str, list[ast.stmt]] = {}
    for node in _statements(scope.body):
        for name in _assigned(node):
            of_name.setdefault(name, []).append(node)
    reached: dict[str, list[ast.stmt]] = {}
    waiting = sorted(names & set(of_name))
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached[name] = of_name[name]
            waiting += sorted(_names_read(of_name[name]) & set(of_name))
    return reached


def _later(syntax: ast.Module, names: Sequence[str], last: str) -> Iterator[ast.stmt]:
    """The statements of a file that replace a definition, or a class around it.

    They assign to (or delete) ``Class.method`` or an attribute of it, bind the class's name again,
    or call ``setattr`` or ``delattr`` on the class. A second definition of the same name is not
    among them: it is a piece of the definition itself.
    """
    qualname = [*names, last]
    for node in _statements(syntax.body):
        is_binding = isinstance(node, Function | ast.Assign | ast.AnnAssign)
        chains = [chain for target in _targets(node) if len(chain := _dotted(target)) > 1]
        if (
            (names and is_binding and names[0] in _defined(node))
            or any(each[: len(qualname)] == qualname[: len(each)] for each in chains)
            or (isinstance(node, ast.Expr) and _sets_attribute(node.value, qualname[0]))
        ):
            yield node


def _sets_attribute(call: ast.expr, name: str) -> bool:
    if not isinstance(call, ast.Call) or not call.args:
        return False
    is_setting = _dotted(call.func) in (["setattr"], ["delattr"])
    return is_setting and _dotted(call.args[0])[:1] == [name]


def _overriding(syntax: ast.Module, base: str, method: str) -> set[str]:
    """The subclasses of a class in the same file that override a method."""
    classes = [node for node in _statements(syntax.body) if isinstance(node, ast.ClassDef)]
    # Until nothing is added: a subclass may stand after its own subclass.
    family = {base}
    while more := {each.name for each in classes if family & set(_base_names(each))} - family:
        family |= more
    return {
        each.name
        for each in classes
        if each.name in family - {base}
        and any(isinstance(node, Function) and node.name == method for node in each.body)
    }


def _header(node: ast.ClassDef) -> Span:
    parts = [*node.decorator_list, *node.bases, *(each.value for each in node.keywords)]
    first, _ = _span(node)
    return first, max([node.lineno, *(each.end_lineno or 0 for each in parts)])


def _spans(nodes: Iterable[ast.stmt]) -> list[Span]:
    return sorted({(node.lineno, node.end_lineno or node.lineno) for node in nodes})


def _literal(nodes: Sequence[ast.stmt]) -> str | None:
    """The ``repr`` of the literal that a name is bound to; None if it is bound otherwise."""
    if len(nodes) != 1 or not isinstance(nodes[0], ast.Assign | ast.AnnAssign):
        return None
    is_plain = isinstance(nodes[0], ast.AnnAssign) or isinstance(nodes[0].targets[0], ast.Name)
    return _repr(nodes[0].value) if is_plain and nodes[0].value else None


def _repr(node: ast.expr) -> str | None:
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
    names = _dotted(node)
    return f"{OF_NAME}{'.'.join(names)}" if names else ""


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body at any depth, but not inside functions and classes in it."""
    for node in body:
        yield node
        if not isinstance(node, Named):
            for block in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, block, ()))
            for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                yield from _statements(part.body)


def _walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    return itertools.chain.from_iterable(map(ast.walk, nodes))


def _span(node: ast.stmt) -> Span:
    """First and last line of a statement, decorators included."""
    decorators = node.decorator_list if isinstance(node, Named) else []
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return first, node.end_lineno or node.lineno


def _targets(node: ast.stmt) -> list[ast.expr]:
    """What a statement assigns to, annotates or deletes."""
    if isinstance(node, ast.Assign | ast.Delete):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []


def _assigned(node: ast.stmt) -> Iterator[str]:
    """The plain names to which a statement assigns a value."""
    if getattr(node, "value", None) is not None:  # a bare annotation or ``del`` has none
        yield from (each.id for each in _walk(_targets(node)) if isinstance(each, ast.Name))


def _defined(node: ast.stmt) -> list[str]:
    """The name of a function or class, or else the names that are assigned."""
    return [node.name] if isinstance(node, Named) else list(_assigned(node))


def _dotted(node: ast.expr) -> list[str]:
    """``A.b.c`` as ``["A", "b", "c"]``; empty for any other expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []


def _base_names(node: ast.ClassDef) -> list[str]:
    """The last name of each base of a class, "" for one that is no name."""
    return [["", *_dotted(base)][-1] for base in node.bases]


def _names_read(nodes: Iterable[ast.AST]) -> set[str]:
    names = (each for each in _walk(nodes) if isinstance(each, ast.Name))
    return {each.id for each in names if isinstance(each.ctx, ast.Load)}


def _attributes_read(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """``(name, attribute)`` of each attribute that code reads; the name is "" for expressions."""
    for each in _walk(nodes):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load):
            of = each.value.func if isinstance(each.value, ast.Call) else each.value
            yield (of.id if isinstance(of, ast.Name) else ""), each.attr
