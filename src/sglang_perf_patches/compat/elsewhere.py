"""What a definition reads from classes and other files. Imported only to parse a file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..model.patch import module_of, qualname_of
from .definition import ClassBody, Span, part_digest_of, text_of
from .statements import Named, assigned, dotted, origins, span, statements, walk

FORWARD_MODE = "sglang.srt.model_executor.forward_batch_info:ForwardMode"
"""The enumeration of which everything named ``forward_mode`` in stock is a member."""
SETTINGS, DEFAULTS = "sglang.srt.environ:envs", "sglang.srt.environ:Envs"
"""Stock's object for environment variables, and the class that declares their defaults."""

_CONSTANT = re.compile("_?[A-Z][A-Z0-9_]*")
_CLASS = re.compile("_*[A-Z]")


class Names:
    """What the names of a file refer to, by its imports and class statements."""

    def __init__(self, syntax: ast.Module, module: str, *, is_package: bool) -> None:
        self._module = module
        self._package = module if is_package else module.rpartition(".")[0]
        there = list(statements(syntax.body))
        self.imported = self.origins(there)
        self._references = dict(self.imported)
        for node in there:
            if isinstance(node, ast.ClassDef):
                self._references[node.name] = f"{module}:{node.name}"

    def origins(self, nodes: Iterable[ast.AST]) -> list[tuple[str, str]]:
        """``(name, reference)`` of each import from another file of sglang."""
        found = origins(nodes, self._package)
        return [(name, each) for name, each in found if module_of(each) != self._module]

    def reference(self, name: str, local: Mapping[str, str]) -> str:
        """The reference of a name; "" if it is neither imported from sglang nor a class here.

        `local` are the imports inside the definition, which come first: name → reference.
        """
        return local.get(name) or self._references.get(name, "")


def constants(own: Sequence[ast.stmt], read: set[str], names: Names) -> dict[str, str]:
    """The constants (by the convention for their names) and settings that come from other files.

    They are among the names `read` by a definition, whose statements are `own`: reference → the
    name that the module gives it, "" if only the definition imports it.
    """
    local = names.origins(walk(own))
    # A definition that is itself an import re-exports what it imports.
    passed = {name for name, _ in names.origins(own)}
    found = {reference: "" for name, reference in local if name in read | passed}
    found |= {reference: name for name, reference in names.imported if name in read | passed}
    found = {each: found[each] for each in found if _CONSTANT.fullmatch(qualname_of(each))}
    for base, name in _attributes(own):
        if names.reference(base, dict(local)) == SETTINGS:
            found[f"{DEFAULTS}.{name}"] = ""
    return found


def classes(
    own: Sequence[ast.stmt], around: Sequence[ast.ClassDef], names: Names
) -> dict[str, tuple[str, ...]]:
    """The classes of sglang that a definition reads: reference → the attributes.

    `own` are its statements, `around` the classes around it, outermost first.
    """
    local = dict(names.origins(walk(own)))
    read: dict[str, set[str]] = {}
    inherited = set()
    for base, name in _attributes(own):
        if base in {"self", "cls", "super", "type"}:
            inherited.add(name)
        elif _CLASS.match(base) and base not in {each.name for each in around}:
            read.setdefault(names.reference(base, local), set()).add(name)
        # ``batch.forward_mode.is_extend()`` reads the enumeration without naming it.
        if base.endswith("forward_mode") or name.endswith("forward_mode"):
            read.setdefault(FORWARD_MODE, set())
    inner = own[-1] if isinstance(own[-1], ast.ClassDef) else (around[-1] if around else None)
    if inner:
        inherited -= set(_bound_in(inner))
        for each in inner.bases:
            read.setdefault(names.reference(".".join(dotted(each)), {}), set()).update(inherited)
    return {name: tuple(sorted(read[name])) for name in sorted(read) if name}


def class_body(lines: Sequence[str], node: ast.stmt, name: str, names: Names) -> ClassBody | None:
    """The class that a statement binds to a name; None if it is neither a class nor an import."""
    if isinstance(node, ast.ImportFrom):
        origin = dict(names.origins([node])).get(name)
        return ClassBody(part_digest_of(origin), (origin,), {}) if origin else None
    if not isinstance(node, ast.ClassDef):
        return None
    bases = [dotted(base) for base in node.bases]
    assignments: dict[str, list[Span]] = {}
    for each in statements(node.body):
        for target in assigned(each):
            assignments.setdefault(target, []).append(span(each))
    return ClassBody(
        part_digest_of(text_of(lines, [span(node)])),
        tuple(names.reference(".".join(base), {}) or base[-1] for base in bases if base),
        {each: part_digest_of(text_of(lines, spans)) for each, spans in assignments.items()},
    )


def _attributes(own: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """``(name, attribute)`` of each attribute that code reads; the name is "" for expressions."""
    for each in walk(own):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load):
            of = each.value.func if isinstance(each.value, ast.Call) else each.value
            yield (of.id if isinstance(of, ast.Name) else ""), each.attr


def _bound_in(node: ast.ClassDef) -> Iterator[str]:
    for each in statements(node.body):
        yield from [each.name] if isinstance(each, Named) else assigned(each)
