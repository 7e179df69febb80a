"""Compares code in memory with what Python compiles from a definition's source.

The same file name and first line are not enough: a stale ``.pyc`` may have been loaded, or the
function's code exchanged.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType

from ..compat.definition import OF_NAME
from ..compat.source import Definition, TreeError, digest_of, lines_of, text_of
from ..model.patching import MISSING


def is_compiled_from(code: CodeType, definition: Definition) -> bool:
    """Whether `code` is what this Python compiles from the source of `definition`.

    Args:
        code: a function's, with the definition's file and one of its first lines (`is_at`).
        definition: one function, or several of one name such as a property and its setter.
    """
    try:
        lines, compiled = _file(definition.path)
        if digest_of(text_of(lines, definition.lines)) != definition.own:
            return False  # the file has changed since the verdict
        return code in compiled
    except (TreeError, SyntaxError, ValueError, RecursionError):
        return False


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
