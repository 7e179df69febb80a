"""Whether code in memory is what Python compiles from a definition's source.

A file name and a first line don't tell: a ``.pyc`` of another text may have been loaded, and a
function can be given another code object. The definition is compiled by itself, below class
statements that stand for those around it, which costs a fraction of compiling its file. Where that
does not give the code in memory, the whole file decides.
"""

from __future__ import annotations
import __future__

import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from ..judge.source import Definition
from ..model.patch import qualname_of

_COMPARED = (
    "co_name",
    "co_flags",
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_names",
    "co_varnames",
    "co_freevars",
    "co_cellvars",
    "co_code",
)
if sys.version_info >= (3, 11):
    _COMPARED += ("co_exceptiontable",)


def is_compiled_from(code: CodeType, definition: Definition) -> bool:
    """Whether `code` is what this Python compiles from the source of `definition`.

    Args:
        code: a function's, which has the definition's file and one of its first lines.
        definition: of a function, or of several of one name, as a property and its setter are.
    """
    try:
        lines, imported = _file(definition.path)
        for first, last in definition.lines:
            if first == code.co_firstlineno:
                alone = _alone(lines[first - 1 : last], qualname_of(definition.reference), imported)
                if any(is_same(code, found) for found in _compiled(alone, code)):
                    return True
        whole = "\n".join(lines)
        return any(
            found.co_firstlineno == code.co_firstlineno and is_same(code, found)
            for found in _compiled(whole, code)
        )
    except (OSError, SyntaxError, ValueError, RecursionError):
        return False


def is_same(one: CodeType, other: CodeType) -> bool:
    """Whether two code objects do the same, wherever in a file they are from."""
    return all(getattr(one, name) == getattr(other, name) for name in _COMPARED) and (
        _key(one.co_consts) == _key(other.co_consts)
    )


def _alone(lines: Sequence[str], qualname: str, imported: str) -> str:
    """A definition's lines below as many class statements, of the same names, as it stands in.

    Args:
        lines: the file's, with their indentation.
        qualname: the definition's.
        imported: what the file imports; Python calls methods of such a name in another way.
    """
    *classes, _ = qualname.split(".")
    above = [f"{' ' * depth}class {name}:" for depth, name in enumerate(classes)]
    if not above and lines[0][:1].isspace():
        above = ["if True:"]
    imports = [f"import {imported}"] if imported else []
    return "\n".join([*imports, *above, *lines, ""])


def _compiled(text: str, like: CodeType) -> Iterator[CodeType]:
    """Every code object of a text that has the name of `like`."""
    # What a file imports from __future__ is seen in the flags of each function of it.
    flags = like.co_flags & __future__.annotations.compiler_flag
    waiting = [compile(text, like.co_filename, "exec", flags, dont_inherit=True)]
    while waiting:
        found = waiting.pop()
        if found.co_name == like.co_name:
            yield found
        waiting += [constant for constant in found.co_consts if isinstance(constant, CodeType)]


def _key(constant: Any) -> Any:
    """Equal for constants of the same type and value, unlike ``1``, ``1.0`` and ``True``."""
    if isinstance(constant, CodeType):
        return CodeType, *(getattr(constant, name) for name in _COMPARED), _key(constant.co_consts)
    if isinstance(constant, tuple):
        return tuple, *map(_key, constant)
    if isinstance(constant, frozenset):
        return frozenset, frozenset(map(_key, constant))
    return type(constant), repr(constant) if isinstance(constant, float | complex) else constant


@lru_cache(maxsize=2)
def _file(path: Path) -> tuple[list[str], str]:
    """The lines of a file, and the names that it imports outside of its definitions."""
    with tokenize.open(path) as file:
        text = file.read()
    names: dict[str, None] = {}
    inside = False
    for match in _IMPORT_OR_BLOCK.finditer(text):
        if match["block"]:
            inside = match["block"] in {"def", "class", "async"}
        elif not (inside and match["indent"]):
            for part in re.sub(r"#.*|[()\\]", " ", match["names"]).split(","):
                words = part.split()
                if words:
                    names[words[-1].partition(".")[0]] = None
    names.pop("*", None)
    return text.split("\n"), ", ".join(name for name in names if name.isidentifier())


_IMPORT_OR_BLOCK = re.compile(
    r"^(?P<indent>[ \t]*)(?:from[ \t]+\S+[ \t]+)?import[ \t]+"
    r"(?P<names>\([^)]*\)|[^\n(]*(?:\\\n[^\n]*)*)"
    r"|^(?P<block>def|class|async|if|try|else|elif|except|finally|with|for|while)\b",
    re.MULTILINE,
)
