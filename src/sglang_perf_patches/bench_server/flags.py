"""The flags of a release's server and its ``bench_serving``, and which values may be shown.

They are read from the release's source: from ``add_argument`` calls and, since 0.5.14, from fields
``NAME: A[TYPE, ...]``. A value may be shown if it is a number and its flag takes one, or if it is a
name in one of the release's lists of choices.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ..compat import source
from ..compat.source import Tree, TreeError
from ..model import setups
from ..model.feature import Feature, Use, flag

Kind = Literal["number", "name", "switch", "text"]
"""What a flag takes. A ``switch`` takes nothing; a ``text`` may never be shown."""

_FILES = (
    *("srt/server_args.py", "srt/arg_groups/choices.py", "srt/arg_groups/fields/*.py"),
    *("bench_serving.py", "benchmark/serving.py"),
)
_NUMBERS = re.compile(r"-?\d{1,9}(?:\.\d{1,6})?|\d{1,6}(?:,\d{1,6}){1,15}|inf", re.ASCII)
_NAME = re.compile(r"[A-Za-z][\w.+-]{0,30}", re.ASCII)


@dataclass(frozen=True)
class Flags:
    """The flags of a release.

    Attributes:
        kinds: flag → what it takes.
        names: all names in lists of choices.
    """

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    names: frozenset[str] = frozenset()

    def kind(self, name: str) -> Kind | None:
        """What a flag takes, also if it is abbreviated as argparse allows; None if unknown."""
        if name in self.kinds or len(name) < 4:
            return self.kinds.get(name)
        longer = {kind for each, kind in self.kinds.items() if each.startswith(name)}
        return longer.pop() if len(longer) == 1 else "text" if longer else None

    def may_show(self, name: str, value: str) -> bool:
        """Whether a flag's value is known to hold nothing private."""
        kind = self.kind(name)
        if kind == "number":
            return is_number(value)
        if kind == "name" and value in self.names:
            return True
        of_feature = _values_of_features().get(name, ())
        return kind in ("name", "text") and bool(value) and value.lower() in of_feature


def is_number(text: str) -> bool:
    """Whether a text is a number, or several with commas between, that could be no secret."""
    return bool(_NUMBERS.fullmatch(text))


@cache
def _values_of_features() -> dict[str, set[Any]]:
    """Flag → the values of it that the declarations of features mention."""
    values: dict[str, set[Any]] = {}
    features: tuple[Feature | Use, ...] = (*setups.FEATURES.all, *setups.FEATURES.uses)
    for each in features:
        for argument, mentioned in (*each.off.items(), *each.on.items()):
            values.setdefault(flag(argument), set()).update(mentioned)
    return values


@cache
def installed() -> Flags:
    """The flags of the installed sglang; empty without sglang."""
    try:
        return of(source.installed())
    except TreeError:
        return Flags()


def of(tree: Tree) -> Flags:
    """The flags of a tree. If two files give a flag different kinds, it is a ``text``."""
    kinds: dict[str, Kind] = {}
    names: set[str] = set()
    for path in (path for pattern in _FILES for path in sorted(tree.root.glob(pattern))):
        for node in ast.walk(_parsed(path)):
            for name, kind in _declared(node):
                kinds[name] = kind if kinds.get(name, kind) == kind else "text"
            names.update(_listed(node))
    return Flags(kinds, frozenset(names))


def _parsed(path: Path) -> ast.AST:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _declared(node: ast.AST) -> Iterator[tuple[str, Kind]]:
    """The flags that a call or a field declares, each with its kind."""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
        given = {each.arg: each.value for each in node.keywords}
        action = ast.unparse(given["action"]) if "action" in given else ""
        kind: Kind = "text"
        if re.search("store_|Boolean|StoreTrue|StoreConst", action):
            kind = "switch"
        elif "choices" in given:
            kind = "name"
        elif "type" in given and re.fullmatch(r"int|float|\w+_int", ast.unparse(given["type"])):
            kind = "number"
        yield from ((name, kind) for name in _texts(node.args) if name.startswith("--"))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        said = node.annotation
        if not (isinstance(said, ast.Subscript) and getattr(said.value, "id", "") == "A"):
            return
        parts = said.slice.elts if isinstance(said.slice, ast.Tuple) else [said.slice]
        more = {each.arg: each.value for part in parts for each in getattr(part, "keywords", ())}
        kind = _typed(parts[0], has_choices=any((name or "")[:7] == "choices" for name in more))
        for name in (flag(node.target.id), *_texts(getattr(more.get("aliases"), "elts", ()))):
            yield name, kind


def _typed(annotation: ast.expr, *, has_choices: bool) -> Kind:
    types = {getattr(node, "id", "") for node in ast.walk(annotation)}
    if "Literal" in types or ("str" in types and has_choices):
        return "name"
    if types & {"str", "dict", "Dict", "Any"}:
        return "text"
    return "number" if types & {"int", "float"} else "switch" if "bool" in types else "text"


def _listed(node: ast.AST) -> Iterator[str]:
    """The names in a list of choices: string literals, or the arguments of ``Literal``."""
    if isinstance(node, (ast.List, ast.Set)) or (
        isinstance(node, ast.Tuple) and all(isinstance(each, ast.Constant) for each in node.elts)
    ):
        yield from filter(_NAME.fullmatch, _texts(node.elts))
    elif isinstance(node, ast.Dict):
        yield from filter(_NAME.fullmatch, _texts([key for key in node.keys if key]))


def _texts(nodes: object) -> Iterator[str]:
    for node in nodes if isinstance(nodes, (list, tuple)) else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
