"""Objects in memory: whether a name still holds what the source defines."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from ..judge.definition import OF_NAME
from ..judge.source import Definition
from ..model.patch import module_of, qualname_of
from ..model.patching import MISSING
from .compiled import Compiled
from .wrappers import (
    chain,
    describe,
    first_replacement,
    foreign,
    is_function,
    is_of_another_copy,
    underlying,
)


class Foreign(Exception):
    """A name holds a foreign object; the message says whose, and where."""


@dataclass(frozen=True)
class Stock:
    """The stock function behind a name.

    Attributes:
        function: the innermost function, whose code is the definition's own.
        wrappers: foreign wrappers around it, outermost first: whose each is, in words.
    """

    function: FunctionType
    wrappers: tuple[str, ...]


def owner_of(reference: str) -> tuple[Any, str]:
    """The module or class that binds the last name of a reference, and that name.

    Raises:
        Foreign: the module is not loaded, or a class on the way is gone or not of that module.
    """
    name = module_of(reference)
    owner: Any = sys.modules.get(name)
    if owner is None:
        raise Foreign(f"module {name} is not loaded")
    *classes, last = qualname_of(reference).split(".")
    for depth, class_name in enumerate(classes, 1):
        owner = vars(owner).get(class_name)
        qualname = ".".join(classes[:depth])
        if not isinstance(owner, type) or not _is_class_of(owner, name, qualname):
            raise Foreign(f"{name}:{qualname} is replaced by {describe(owner)}")
    return owner, last


def raw(owner: Any, name: str) -> Any:
    """The attribute as the owner itself holds it, `MISSING` where it holds none."""
    return vars(owner).get(name, MISSING)


def glimpse(references: Iterable[str]) -> list[Any]:
    """Objects that are the same ones as before unless something was changed; costs little."""
    objects: list[Any] = []
    for reference in references:
        owner: Any = sys.modules.get(module_of(reference))
        for name in qualname_of(reference).split("."):
            objects += owner, getattr(owner, "__bases__", None)
            owner = getattr(owner, "__dict__", {}).get(name)
        function = underlying(owner)
        objects += owner, getattr(owner, "__bases__", None)
        objects += getattr(function, "__code__", None), getattr(function, "__defaults__", None)
        objects += (getattr(function, "__kwdefaults__", None) or {}).values()
    return objects


def check_values(definition: Definition, is_ours: Callable[[str], bool]) -> None:
    """Verify that the literals which a definition reads are what the source says.

    Args:
        definition: whose.
        is_ours: whether a reference leads to something of ours.

    Raises:
        Foreign: somebody changed one.
    """
    for reference, text in definition.values.items():
        owner: Any = sys.modules.get(module_of(reference))
        if owner is None:
            continue  # a function imports it when it runs
        *classes, name = qualname_of(reference).split(".")
        for each in classes:
            owner = vars(owner).get(each) if owner is not None else None
        held = vars(owner).get(name, MISSING) if owner is not None else MISSING
        if held is MISSING and not classes:
            raise Foreign(f"{reference}, which {definition.reference} reads, is gone from memory")
        # A class may keep something else in its place, as an enumeration does.
        is_kept = isinstance(held, int | float | str | bytes | tuple | None)
        if (is_kept or not classes) and repr(held) != text and not is_ours(reference):
            raise Foreign(
                f"{reference}, which {definition.reference} reads, is {held!r:.80} "
                f"in memory and {text} in the source"
            )


def check(definition: Definition, compiled: Compiled) -> Stock | None:
    """Verify that a definition's name holds its stock object; what a function's name holds.

    Returns:
        the stock function where the definition is one; None for classes and values.

    Raises:
        Foreign: somebody replaced it, or the class it is in.
    """
    owner, name = owner_of(definition.reference)
    held = raw(owner, name)
    if held is MISSING:
        raise Foreign(f"{definition.reference} is gone from memory")
    if definition.is_class:
        module, qualname = module_of(definition.reference), qualname_of(definition.reference)
        if not isinstance(held, type) or not _is_class_of(held, module, qualname):
            raise Foreign(f"{definition.reference} is replaced by {describe(held)}")
        _check_bases(held, definition)
        return None
    if isinstance(owner, type):
        _check_bases(owner, definition)
    if not definition.is_function:
        return None
    return stock_function(held, definition, compiled)


def check_relatives(reference: str, verified: Collection[str]) -> None:
    """Verify that what is to be added to a class hides and is hidden by known code alone.

    Args:
        reference: of what is to be added.
        verified: references that are verified.

    Raises:
        Foreign: a base or a subclass has that name too, and it is none of these.
    """
    owner, name = owner_of(reference)
    if not isinstance(owner, type):
        return
    for each in (*owner.__mro__[1:-1], *_below(owner)):
        of = f"{each.__module__}:{each.__qualname__}.{name}"
        if name in vars(each) and of not in verified:
            what = "inherited from" if issubclass(owner, each) else "overridden in"
            raise Foreign(f"{reference} exists already: it is {what} {describe(each)}")


def _below(owner: type) -> Iterator[type]:
    below: list[type] = type.__subclasses__(owner)
    for each in below:
        yield each
        yield from _below(each)


def stock_function(held: Any, definition: Definition, compiled: Compiled) -> Stock:
    """Follow wrappers from what a name holds to the function that the source defines.

    Raises:
        Foreign: the chain ends elsewhere, a link of it does not call the next, or the function's
            code is not what its source says.
    """
    links = list(chain(held))
    for depth, link in enumerate(links):
        if is_of_another_copy(link):
            raise Foreign(f"{definition.reference} is patched by another copy: {describe(link)}")
        if is_function(link) and _is_at(link.__code__, definition):
            replacement = first_replacement(links[: depth + 1])
            if replacement is not None:
                raise Foreign(f"{definition.reference} is replaced by {describe(replacement)}")
            if not compiled.has(link.__code__, definition):
                raise Foreign(
                    f"{definition.reference} in memory is not what its source said when it was "
                    f"judged: the file or the code in memory was changed"
                )
            changed = _changed_default(link, definition)
            if changed:
                raise Foreign(f"the default of {changed} of {definition.reference} was changed")
            # Stock's own decorators wrap too; only further wrappers come from other code.
            return Stock(link, foreign(links[: max(0, depth - definition.decorators)]))
    raise Foreign(f"{definition.reference} is replaced by {describe(links[0])}")


def _check_bases(held: type, definition: Definition) -> None:
    """Verify that a class has the bases that its source names.

    Raises:
        Foreign: it has others.
    """
    names = definition.bases
    bases = [base for base in held.__bases__ if base is not object]
    module = sys.modules.get(module_of(definition.reference))
    what = f"{held.__module__}:{held.__qualname__}"
    # What is no class in memory, as NamedTuple, is replaced when the class is made.
    if any(not isinstance(getattr(module, name, type), type) for name in names if name):
        return
    for base, name in zip(bases, names, strict=False):
        if name and base.__name__ != name and getattr(module, name, None) is not base:
            raise Foreign(f"{what} has the base {describe(base)}, not {name}")
    # What stands for several, such as Generic[T], may bring more than one or none.
    if all(names) and len(bases) != len([name for name in names if name != "object"]):
        raise Foreign(f"{what} has {len(bases)} bases, not {len(names)}")


def _changed_default(function: FunctionType, definition: Definition) -> str:
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


def _is_at(code: CodeType, definition: Definition) -> bool:
    first_lines = {first for first, _ in definition.lines}
    return code.co_firstlineno in first_lines and _same_file(code.co_filename, definition.path)


@functools.lru_cache(maxsize=1024)
def _same_file(name: str, path: Path) -> bool:
    return name == str(path) or Path(name).resolve() == path.resolve()


def _is_class_of(held: type, module: str, qualname: str) -> bool:
    return held.__module__ == module and held.__qualname__ == qualname
