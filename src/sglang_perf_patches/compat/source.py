"""Reads a sglang tree as text: its place, its version and its definitions. Never imports sglang.

A definition is identified by the sha256 of its own dedented source, with decorators and comments,
and by digests of what around it decides how it behaves (see `parsing`). Changes elsewhere in the
file don't count.

What was parsed from the files of the known releases is shipped in a table, so that a process need
not parse them. An entry is found by a file's content and path, so the table also helps with a
changed release or a source build: only their changed files are parsed. If the table can't be used,
every file is parsed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from ..model.patch import module_of
from .definition import ClassBody, Definition, TreeError, part_digest_of, unreadable

_VERSION = re.compile(r"^__version__\s*=[^'\"\n]*['\"]([^'\"]+)['\"]", re.MULTILINE)

__all__ = ["Definition", "Tree", "TreeError", "at", "find", "installed"]

TABLE = Path(__file__).with_name("releases.xz")
"""Its first line is `makers` at the time of writing; then it has a line for each file."""


def makers() -> str:
    """Sha256 of our code that parses files. A table that other code made is not used."""
    names = ("definition.py", "parsing.py", "source.py")
    texts = [Path(__file__).with_name(name).read_bytes() for name in names]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def key(path: Path, root: Path) -> str:
    """The key in the table of a file below a ``sglang`` package: its content and its place."""
    stamp = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{stamp} {path.relative_to(root).as_posix()}"


def shipped() -> dict[str, str]:
    """The table: `key` → what was parsed, as JSON; empty if the table can't be used."""
    try:
        import lzma
    except ImportError:  # a Python can be built without it
        return {}
    try:
        made_by, *lines = lzma.decompress(TABLE.read_bytes()).decode().split("\n")
        if made_by != makers():
            return {}
        split = (line.split(" ", 2) for line in lines)
        return {f"{stamp} {place}": text for stamp, place, text in split}
    except (OSError, EOFError, ValueError, lzma.LZMAError):
        return {}


def installed() -> Tree:
    """The tree that this interpreter would import, without importing it.

    It raises `TreeError` if there is none.
    """
    try:
        spec = importlib.util.find_spec("sglang")
    except (ImportError, ValueError):
        spec = None
    for place in (spec and spec.submodule_search_locations) or ():
        if (Path(place) / "srt").is_dir():
            return Tree(Path(place).resolve())
    raise TreeError("sglang is not installed for this Python; use one that has it")


def at(path: str | Path) -> Tree:
    """The tree at `path` (see `find`); raises TreeError if there is none."""
    return Tree(find(path))


def find(path: str | Path) -> Path:
    """The ``sglang`` package at `path`: the package itself, its parent, or a checkout.

    It raises `TreeError` if there is none.
    """
    place = Path(path)
    try:
        for candidate in (place / "python" / "sglang", place / "sglang", place):
            inits = (candidate / f"__init__{each}" for each in (".py", *BYTECODE_SUFFIXES))
            if (candidate / "srt").is_dir() and any(init.is_file() for init in inits):
                return candidate.resolve()
    except OSError as error:
        raise unreadable(place, error) from error
    raise TreeError(f"{place} is not a sglang tree: it has no sglang package with a folder 'srt'")


class Tree:
    """A sglang package on disk, read lazily: each file, and each definition in it, once.

    `root` is the package folder itself (see `find`).
    """

    def __init__(self, root: Path, table: Callable[[], Mapping[str, str]] = shipped) -> None:
        self.root = root
        self.read: dict[Path, dict[str, Any]] = {}  # what was read of files, as in the table
        self._read_table = table
        self._table: Mapping[str, str] | None = None
        self._version = ""
        self._paths: dict[str, Path | None] = {}
        self._modules: dict[str, Any] = {}  # those that were parsed, as `parsing.Module`
        self._definitions: dict[str, Definition | None] = {}

    @property
    def version(self) -> str:
        """The version in the tree or in its metadata; ``"unknown"`` if neither has one."""
        # Not a cached_property: up to Python 3.11 it has a lock, which a fork could leave held.
        self._version = self._version or self._find_version()
        return self._version

    def _find_version(self) -> str:
        for name in ("_version.py", "version.py"):
            try:
                text = (self.root / name).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            if assignment := _VERSION.search(text):
                return assignment[1]
        from importlib import metadata

        for distribution in metadata.distributions(name="sglang", path=[str(self.root.parent)]):
            return distribution.version
        return "unknown"

    def path(self, module: str) -> Path | None:
        """The file of a module such as ``sglang.srt.utils``; None if there is no such module.

        It raises `TreeError` if a folder can't be read, or the module exists without its source.
        """
        if module not in self._paths:
            self._paths[module] = self._path(module)
        return self._paths[module]

    def _path(self, module: str) -> Path | None:
        below = self.root.joinpath(*module.split(".")[1:])
        try:
            for candidate in (below / "__init__.py", below.with_suffix(".py")):
                if candidate.is_file():
                    return candidate
            for suffix in (*BYTECODE_SUFFIXES, *EXTENSION_SUFFIXES):
                for stem in (below / "__init__", below):
                    if os.path.isfile(f"{stem}{suffix}"):
                        raise TreeError(f"no source: {module} has only {stem}{suffix}")
        except OSError as error:
            raise unreadable(below, error) from error
        return None

    def definition(self, reference: str) -> Definition | None:
        """The definition at a reference; None if the module or the name is missing.

        It raises `TreeError` as `path` does, or if the file can't be read or parsed.
        """
        if reference not in self._definitions:
            self._definitions[reference] = None  # ends the recursion of circular imports
            try:
                path, kept = self._read("definition", reference)
                if path and kept:
                    self._definitions[reference] = self._with_read(_made(reference, path, kept))
            except BaseException:
                del self._definitions[reference]
                raise
        return self._definitions[reference]

    def _read(self, what: str, reference: str) -> tuple[Path | None, Any]:
        """The file of a reference, and the result of the method `what` of `parsing.Module`.

        That result is in the table, or else the method is called.
        """
        module = module_of(reference)
        path = self.path(module)
        if path is None:
            return None, None
        if path not in self.read:
            try:
                place = key(path, self.root)
            except OSError as error:
                raise unreadable(path, error) from error
            if self._table is None:
                self._table = self._read_table()
            self.read[path] = json.loads(self._table.get(place, "{}"))
        kept = self.read[path]
        name = f"{what}:{reference}"
        if name not in kept:
            from .parsing import Module

            try:
                if module not in self._modules:
                    self._modules[module] = Module(path, module)
                kept[name] = getattr(self._modules[module], what)(reference)
            except RecursionError as error:
                raise TreeError(f"{path} is nested too deep") from error
        return path, kept[name]

    def _with_read(self, definition: Definition) -> Definition:
        """Add what a definition reads from classes and other files to its parts and values."""
        parts, values = [], dict(definition.values)
        for reference, name in sorted(definition.imports.items()):
            constant = self.definition(reference)
            if constant is None or constant.is_class or constant.is_function:
                continue
            parts.append(f"{reference} {constant.digest}")
            values |= constant.values
            if name and reference in constant.values:
                values[f"{module_of(definition.reference)}:{name}"] = constant.values[reference]
        for reference, names in definition.classes.items():
            parts += self._read_of_class(reference, names)
        if not parts:
            return definition
        digest = part_digest_of("\n".join(parts))
        return replace(definition, parts={**definition.parts, "imported": digest}, values=values)

    def _read_of_class(self, reference: str, names: Collection[str]) -> Iterator[str]:
        """A line with a digest for each thing that is read from a class and its bases.

        Of an enumeration that is the whole class, of another class the constants among `names`.
        """
        family: dict[str, ClassBody] = {}
        waiting = [reference]
        while waiting:
            name = waiting.pop()
            if name in family or ":" not in name:
                continue
            _, kept = self._read("class_body", name)
            if kept:
                family[name] = ClassBody(*kept)
                waiting += family[name].bases
        # Of the standard library, whose enumerations have such names.
        foreign = [base for body in family.values() for base in body.bases if ":" not in base]
        is_enumeration = any(base.endswith(("Enum", "Flag")) for base in foreign)
        for name, body in family.items():
            if is_enumeration:
                yield f"{name} {body.own}"
            else:
                found = sorted(set(names) & set(body.constants))
                yield from (f"{name}.{each} {body.constants[each]}" for each in found)


def _made(reference: str, path: Path, kept: dict[str, Any]) -> Definition:
    """A definition from what `parsing.Module.definition` returned, also after a way by JSON."""
    lists = {
        "lines": tuple((int(first), int(last)) for first, last in kept["lines"]),
        "bases": tuple(kept["bases"]),
        "classes": {name: tuple(read) for name, read in kept["classes"].items()},
        "members": tuple(_made(name, path, each) for name, each in kept["members"].items()),
    }
    return Definition(**{**kept, **lists, "reference": reference, "path": path})
