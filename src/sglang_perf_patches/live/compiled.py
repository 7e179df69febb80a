"""Compares code in memory with what Python compiles from a definition's source.

The same file name and first line are not enough: a stale ``.pyc`` may have been loaded, or the
function's code exchanged. For speed, the definition is compiled by itself, in class statements that
stand for those around it. If the result differs, the whole file is compiled and decides.
"""

from __future__ import annotations
import __future__

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from ..compat.definition import OF_NAME
from ..compat.source import Definition, TreeError, digest_of, lines_of, text_of
from ..model.patch import qualname_of
from ..model.patching import MISSING

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


class Compiled:
    """Compares code with its source, and remembers code that is equal."""

    def __init__(self) -> None:
        self._verified: dict[str, CodeType] = {}

    def has(self, code: CodeType, definition: Definition) -> bool:
        """Whether `code` is what this Python compiles from the source of `definition`.

        Args:
            code: a function's, with the definition's file and one of its first lines (`is_at`).
            definition: one function, or several of one name such as a property and its setter.
        """
        if code is self._verified.get(definition.reference):
            return True
        if not is_compiled_from(code, definition):
            return False
        self._verified[definition.reference] = code
        return True


def is_compiled_from(code: CodeType, definition: Definition) -> bool:
    """See `Compiled.has`; always compiles."""
    try:
        lines, imported = _file(definition.path)
        if digest_of(text_of(lines, definition.lines)) != definition.own:
            return False  # the file has changed since the verdict
        wanted = fingerprint(code)
        for first, last in definition.lines:
            if first == code.co_firstlineno:
                alone = _alone(lines[first - 1 : last], qualname_of(definition.reference), imported)
                if any(fingerprint(code_object) == wanted for code_object in _made_of(alone, code)):
                    return True
        return any(
            code_object.co_firstlineno == code.co_firstlineno and fingerprint(code_object) == wanted
            for code_object in _made_of("\n".join(lines), code)
        )
    except (TreeError, SyntaxError, ValueError, RecursionError):
        return False


def fingerprint(code: CodeType) -> str:
    """Sha256 of what code does, in hexadecimal; its place in the file does not count."""
    return hashlib.sha256(repr(_key(code)).encode(errors="surrogatepass")).hexdigest()


def _alone(lines: Sequence[str], qualname: str, imported: str) -> str:
    """The source of a definition inside class statements with the names of those around it.

    Args:
        lines: the definition's, with their indentation.
        qualname: the definition's.
        imported: the names that the file imports. Python compiles a method call on an imported
            name differently, so the text imports them too.
    """
    *classes, _ = qualname.split(".")
    above = [f"{' ' * depth}class {name}:" for depth, name in enumerate(classes)]
    if not above and lines[0][:1].isspace():
        above = ["if True:"]
    imports = [f"import {imported}"] if imported else []
    return "\n".join([*imports, *above, *lines, ""])


def _made_of(text: str, like: CodeType) -> Iterator[CodeType]:
    """Compile a text, and give every code object in it that has the name of `like`."""
    # ``from __future__ import annotations`` of the file is a flag of each of its functions.
    flags = like.co_flags & __future__.annotations.compiler_flag
    waiting = [compile(text, like.co_filename, "exec", flags, dont_inherit=True)]
    while waiting:
        code_object = waiting.pop()
        if code_object.co_name == like.co_name:
            yield code_object
        waiting += [
            constant for constant in code_object.co_consts if isinstance(constant, CodeType)
        ]


def _key(constant: Any) -> Any:
    """A key that differs for unlike constants, also equal ones such as ``1``, ``1.0``, ``True``."""
    if isinstance(constant, CodeType):
        compared = [getattr(constant, name) for name in _COMPARED]
        return ["code", *compared, _key(constant.co_consts)]
    if isinstance(constant, tuple):
        return ["tuple", *map(_key, constant)]
    if isinstance(constant, frozenset):
        return ["frozenset", *sorted(repr(_key(member)) for member in constant)]
    return [type(constant).__name__, constant]


@lru_cache(maxsize=2)
def _file(path: Path) -> tuple[list[str], str]:
    """The lines of a file, and the names that it imports outside of its definitions."""
    lines = lines_of(path)
    text = "\n".join(lines)
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
    return lines, ", ".join(name for name in names if name.isidentifier())


_IMPORT_OR_BLOCK = re.compile(
    r"^(?P<indent>[ \t]*)(?:from[ \t]+\S+[ \t]+)?import[ \t]+"
    r"(?P<names>\([^)]*\)|[^\n(]*(?:\\\n[^\n]*)*)"
    r"|^(?P<block>def|class|async|if|try|else|elif|except|finally|with|for|while)\b",
    re.MULTILINE,
)


def changed_default(function: FunctionType, definition: Definition) -> str:
    """The first parameter whose default in memory differs from the source; "" if none does."""
    if len(definition.lines) > 1:
        return ""  # the function may be any of several pieces, such as a property's setter
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    values = function.__defaults__ or ()
    held = dict(zip(positional[len(positional) - len(values) :], values, strict=True))
    held |= function.__kwdefaults__ or {}
    for name in definition.defaults.keys() ^ held.keys():
        return name
    for name, text in definition.defaults.items():
        if text.startswith(OF_NAME):
            first, *rest = text.removeprefix(OF_NAME).split(".")
            value = function.__globals__.get(first, MISSING)
            for each in rest:
                value = getattr(value, each, MISSING)
            if value is not MISSING and value is not held[name]:
                return name
        elif text and repr(held[name]) != text:
            return name
    return ""


def is_at(code: CodeType, definition: Definition) -> bool:
    """Whether code names the file and a first line of a definition."""
    first_lines = {first for first, _ in definition.lines}
    return code.co_firstlineno in first_lines and _same_file(code.co_filename, definition.path)


@lru_cache(maxsize=1024)
def _same_file(name: str, path: Path) -> bool:
    return name == str(path) or Path(name).resolve() == path.resolve()
