"""The flags of a release's server and its ``bench_serving``, and which values may be shown.

They are read from the release's source: from ``add_argument`` calls and, since 0.5.14, from fields
``NAME: A[TYPE, ...]``. A value may be shown if it is a short number or a name in one of the
release's lists of choices, unless the flag's own name speaks of a secret.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..compat import source
from ..compat.source import Tree, TreeError
from ..model.feature import Condition, flag
from ..model.setups import FEATURES

_FILES = (
    *("srt/server_args.py", "srt/arg_groups/choices.py", "srt/arg_groups/fields/*.py"),
    *("bench_serving.py", "benchmark/serving.py"),
)
_NUMBERS = re.compile(r"-?\d{1,9}(?:\.\d{1,6})?|\d{1,6}(?:,\d{1,6}){1,15}|inf", re.ASCII)
_NAME = re.compile(r"[A-Za-z][\w.+-]{0,30}", re.ASCII)
_SECRET = re.compile(r"KEY|TOKEN(?!S|IZ)|SECRET|PASS|PWD|AUTH|PIN|CRED|COOKIE")
_WORDS = {"", "true", "false", "True", "False", "yes", "no", "on", "off", "auto"}


@dataclass(frozen=True)
class Flags:
    """The flags of a release.

    Attributes:
        names: all names in lists of choices.
    """

    flags: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()

    def meant(self, name: str) -> set[str]:
        """The flags that a word stands for, which may be abbreviated as argparse allows."""
        if name in self.flags:
            return {name}
        return {each for each in self.flags if each.startswith(name) and len(name) > 3}

    def may_show(self, name: str, value: str) -> bool:
        """Whether the value of a flag or a variable is known to hold nothing private."""
        if value in _WORDS:
            return True
        if any(_SECRET.search(each.upper()) for each in (name, *self.meant(name))):
            return False
        is_name = value in self.names or value.lower() in _names_of_features()
        return is_name or bool(_NUMBERS.fullmatch(value))


@cache
def _names_of_features() -> set[str]:
    """The values that the declarations of features mention."""
    conditions: tuple[Condition, ...] = (*FEATURES.all, *FEATURES.uses)
    mentioned = (
        values for each in conditions for of in (each.off, each.on) for values in of.values()
    )
    return {value for values in mentioned for value in values if isinstance(value, str)}


@cache
def installed() -> Flags:
    """The flags of the installed sglang; empty without sglang."""
    try:
        return of(source.installed())
    except TreeError:
        return Flags()


def of(tree: Tree) -> Flags:
    """The flags of a tree."""
    paths = (path for pattern in _FILES for path in sorted(tree.root.glob(pattern)))
    nodes = [node for path in paths for node in ast.walk(_parsed(path))]
    flags = (name for node in nodes for name in _declared(node))
    return Flags(frozenset(flags), frozenset(name for node in nodes for name in _listed(node)))


def _parsed(path: Path) -> ast.AST:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _declared(node: ast.AST) -> Iterator[str]:
    """The flags that a call or a field declares."""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
        yield from (name for name in _texts(node.args) if name.startswith("--"))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        declared = node.annotation
        if isinstance(declared, ast.Subscript) and getattr(declared.value, "id", "") == "A":
            yield flag(node.target.id)
            for each in ast.walk(declared.slice):
                if isinstance(each, ast.keyword) and each.arg == "aliases":
                    yield from _texts(getattr(each.value, "elts", ()))


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
