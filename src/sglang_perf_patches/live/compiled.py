"""Compares code in memory with what Python compiles from a definition's source.

The same file name and first line are not enough: a stale ``.pyc`` may have been loaded, or the
function's code exchanged.
"""

from __future__ import annotations

import hashlib
import sys
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from ..compat.definition import OF_NAME
from ..compat.source import Definition, TreeError, digest_of, lines_of, text_of
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
        lines, compiled = _file(definition.path)
        if digest_of(text_of(lines, definition.lines)) != definition.own:
            return False  # the file has changed since the verdict
        wanted = fingerprint(code)
        return any(
            fingerprint(each) == wanted
            for each in compiled
            if (each.co_name, each.co_firstlineno) == (code.co_name, code.co_firstlineno)
        )
    except (TreeError, SyntaxError, ValueError, RecursionError):
        return False


def fingerprint(code: CodeType) -> str:
    """Sha256 of what code does, in hexadecimal; its place in the file does not count."""
    return hashlib.sha256(repr(_key(code)).encode(errors="surrogatepass")).hexdigest()


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


@lru_cache(maxsize=16)
def _file(path: Path) -> tuple[list[str], list[CodeType]]:
    """The lines of a file, and every code object that Python compiles from it."""
    lines = lines_of(path)
    codes = [compile("\n".join(lines), path, "exec", dont_inherit=True)]
    for code in codes:  # the loop also visits what it appends
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return lines, codes


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
