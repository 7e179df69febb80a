"""Whether code in memory is what Python compiles from a definition's source.

A file name and a first line are not enough: a ``.pyc`` of another text may have been loaded, and a
function can get another code object. The definition is compiled by itself, below class
statements that stand for those around it, which costs a fraction of compiling its file. Where that
does not give the code in memory, the whole file decides.
"""

from __future__ import annotations
import __future__

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from ..compat.cache import NOTHING, Cache
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
_KEPT_AS = f"code:{importlib.util.MAGIC_NUMBER.hex()}:{sys.flags.optimize}"


class Compiled:
    """What Python compiles from definitions; what was compared is kept for later processes."""

    def __init__(self, cache: Cache | None = None) -> None:
        """Keep fingerprints of code in `cache`, which is the tree's."""
        self._cache = cache
        self._verified: dict[str, CodeType] = {}
        self._new: list[tuple[Path, str, str]] = []

    def has(self, code: CodeType, definition: Definition) -> bool:
        """Whether `code` is what this Python compiles from the source of `definition`.

        Args:
            code: a function's, which has the definition's file and one of its first lines.
            definition: of a function, or of several of one name, as a property and its setter are.
        """
        if code is self._verified.get(definition.reference):
            return True
        name = f"{_KEPT_AS}:{code.co_firstlineno}:{definition.reference}"
        kept = self._cache.get(definition.path, name) if self._cache else NOTHING
        if kept is NOTHING or kept != fingerprint(code):
            if not is_compiled_from(code, definition):
                return False
            self._new.append((definition.path, name, fingerprint(code)))
        self._verified[definition.reference] = code
        return True

    def save(self) -> None:
        """Keep what was compared since the last time; one thread at a time."""
        if self._cache is None or not self._new:
            return
        while self._new:
            self._cache.put(*self._new.pop())
        self._cache.save()


def is_compiled_from(code: CodeType, definition: Definition) -> bool:
    """As `Compiled.has`, by compiling."""
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
    """The same for code objects that do the same, wherever in a file they are from."""
    return hashlib.sha256(repr(_key(code)).encode(errors="surrogatepass")).hexdigest()


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


def _made_of(text: str, like: CodeType) -> Iterator[CodeType]:
    """Every code object of a text that has the name of `like`."""
    # A file's imports from __future__ appear in the flags of each of its functions.
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
    """What differs for constants of another type or value, such as ``1``, ``1.0`` and ``True``."""
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
    """The parameter whose default is not the source's; "" if each is."""
    if len(definition.lines) > 1:
        return ""  # of several pieces, as a property's, any may be this one
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
    """Whether code says that it begins where a definition does."""
    first_lines = {first for first, _ in definition.lines}
    return code.co_firstlineno in first_lines and _same_file(code.co_filename, definition.path)


@lru_cache(maxsize=1024)
def _same_file(name: str, path: Path) -> bool:
    return name == str(path) or Path(name).resolve() == path.resolve()
