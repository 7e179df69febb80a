"""The flags of a release's server and its ``bench_serving``, and which values may be shown.

They are read from the release's source: strings such as ``"--port"`` and, since 0.5.14, fields
``NAME: A[TYPE, ...]``. A value may be shown if it is a short number or a name that is a string in
these files, unless the flag's own name speaks of a secret.
"""

from __future__ import annotations

import ast
import re
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
_FLAG = re.compile(r"--[a-z][\w-]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z][\w.+-]{0,30}", re.ASCII)
_SECRET = re.compile(r"KEY|TOKEN(?!S|IZ)|SECRET|PASS|PWD|AUTH|PIN|CRED|COOKIE")
_WORDS = {"", "true", "false", "True", "False", "yes", "no", "on", "off", "auto"}


@dataclass(frozen=True)
class Flags:
    """The flags of a release.

    Attributes:
        names: all strings that are names, such as those in lists of choices.
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
    texts = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    flags = {*filter(_FLAG.fullmatch, texts), *filter(None, map(_declared, nodes))}
    return Flags(frozenset(flags), frozenset(filter(_NAME.fullmatch, texts)))


def _parsed(path: Path) -> ast.AST:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _declared(node: ast.AST) -> str:
    """The flag that a field declares; "" if the node is none."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        is_flag = getattr(getattr(node.annotation, "value", None), "id", "") == "A"
        return flag(node.target.id) if is_flag else ""
    return ""
