"""Checks in memory that each name a patch changes or relies on holds what it should.

That is stock's own object, whose code may be exchanged for ours (`switch`). Code counts as stock's
if Python compiles it from the definition's source. The same file name and first line are not
enough: a stale ``.pyc`` may have been loaded, or the function's code exchanged.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from ..compat.definition import OF_NAME, Definition, TreeError, digest_of, lines_of, text_of
from ..model.patch import module_of, qualname_of
from ..model.patching import MISSING
from .imports import is_ready
from .member import Found, Member
from .switch import PREFIX, Attribute, board, place_at, place_in, raw, shown_at, stock_code
from .wrappers import (
    Conflict,
    chain,
    describe,
    first_replacement,
    is_class_of,
    is_function,
    owner_of,
    underlying,
)


class Verifier:
    """Verifies patches against memory. It changes nothing."""

    def __init__(self) -> None:
        self._compiled: dict[str, CodeType] = {}  # what is known to be its source's

    def verify(self, member: Member) -> Found:
        """Check every definition of a patch in memory, each once.

        It raises `Conflict` if other code replaced one, or already added what the patch would add.
        """
        variant, found = member.variant, Found()
        definitions = {each.reference: each for each in member.each_definition()}
        for reference, definition in definitions.items():
            if _is_ready(reference):  # else it is verified when its import ends
                check_values(definition)
                wrappers = self._check(definition, found)
                found.wrappers += wrappers if reference in variant.targets else ()
        for reference, place in member.places.items():
            if not _is_ready(reference):
                continue
            if isinstance(place, Attribute):
                is_ours = place.owner is owner_of(reference)[0]
            else:
                is_on = place in board.now.values
                is_ours = found.stock[reference] is place.function and place.stands() == is_on
            if not is_ours:
                why = f"somebody restored it, or reloaded {module_of(reference)}"
                raise Conflict(f"{reference} is stock's own again: {why}")
        for reference in variant.adds:
            _, _, held, shown = _held_at(reference)
            if shown is not None:
                found.wrappers += _around_ours(reference, held, shown.value)
            elif held is not MISSING:
                raise Conflict(f"{reference} exists already: {describe(held)}")
            else:
                check_relatives(reference, definitions)
        return found

    def found(self, member: Member) -> Found:
        """What `verify` finds; the last time's if nothing was replaced since then."""
        now = self.identity_snapshot(member)
        if len(now) != len(member.seen) or not all(map(operator.is_, now, member.seen)):
            member.found, member.seen = self.verify(member), now
        return member.found

    def identity_snapshot(self, member: Member) -> list[Any]:
        """Every object that a replacement of anything relied on would exchange."""
        # This runs once a second for every live patch. So it only collects objects, to compare by
        # identity; `verify` reads and compiles source when one of them has changed.
        definitions = list(member.each_definition())
        read = (name for each in definitions for name in each.values)
        own = (each.reference for each in definitions)
        names = dict.fromkeys((*own, *member.variant.adds, *read))
        objects: list[Any] = []
        for reference in names:
            held: Any = sys.modules.get(module_of(reference))
            for name in qualname_of(reference).split("."):
                objects += held, getattr(held, "__bases__", None)
                held = getattr(held, "__dict__", {}).get(name)
            function = underlying(held)
            objects += held, getattr(held, "__bases__", None)
            objects += getattr(function, "__code__", None), getattr(function, "__defaults__", None)
            objects += (getattr(function, "__kwdefaults__", None) or {}).values()
        functions = (getattr(place, "function", None) for place in member.places.values())
        objects += (getattr(function, "__code__", None) for function in functions)
        objects += map(is_ready, dict.fromkeys(map(module_of, names)))
        return objects

    def _check(self, definition: Definition, found: Found) -> tuple[str, ...]:
        """Verify a definition's object, note its function, and describe the wrappers around it."""
        reference = definition.reference
        owner, _, held, shown = _held_at(reference)
        if held is MISSING:
            raise Conflict(f"{reference} is gone from memory")
        if shown is not None:
            return _around_ours(reference, held, shown.value)
        if definition.is_class:
            if not is_class_of(held, module_of(reference), qualname_of(reference)):
                raise Conflict(f"{reference} is replaced by {describe(held)}")
            _check_bases(held, definition)
            return ()
        if isinstance(owner, type):
            _check_bases(owner, definition)
        if not definition.is_function:
            return ()
        links = list(chain(held))
        for depth, link in enumerate(links):
            if is_function(link) and is_at(link.__code__, definition):
                replacement = first_replacement(links[: depth + 1])
                if replacement is not None:
                    raise Conflict(f"{reference} is replaced by {describe(replacement)}")
                self._check_function(link, definition)
                found.stock[reference] = link
                # Stock's own decorators wrap too; only further wrappers come from other code.
                return tuple(map(describe, links[: max(0, depth - definition.decorators)]))
        raise Conflict(f"{reference} is replaced by {describe(links[0])}")

    def _check_function(self, function: FunctionType, definition: Definition) -> None:
        """Verify the code, the globals and the defaults of a function."""
        reference, code = definition.reference, stock_code(function)
        if any(name.startswith(PREFIX) for name in code.co_names):
            raise Conflict(f"{reference} is patched by another copy: {describe(function)}")
        if code is not self._compiled.get(reference):
            if not is_compiled_from(code, definition):
                why = "the file or the code in memory was changed"
                raise Conflict(
                    f"{reference} in memory is not what its source said when it was judged: {why}"
                )
            self._compiled[reference] = code
        # A copy in another module has equal code, but its own globals.
        if function.__globals__ is not vars(sys.modules[module_of(reference)]):
            raise Conflict(f"{reference} in memory reads the globals of other code")
        if changed := changed_default(function, definition):
            raise Conflict(f"the default of {changed} of {reference} was changed")


def _is_ready(reference: str) -> bool:
    return is_ready(module_of(reference))


def _held_at(reference: str) -> tuple[Any, str, Any, Attribute | None]:
    """The owner of a reference, its last name there, what that holds, and our attribute's place."""
    owner, name = owner_of(reference)
    return owner, name, raw(owner, name), shown_at(owner, name)


def place_of(reference: str, found: Found) -> Any:
    """The place of what was just verified; raises TypeError if its code can't be exchanged."""
    owner, name, held, _ = _held_at(reference)
    function = found.stock.get(reference)
    if function is None:
        return place_at(owner, name)
    if isinstance(held, property):
        raise TypeError("a property is not exchangeable")
    # A foreign wrapper may keep what it wraps under a second name.
    if underlying(held) is function and (other := second_name(function, reference)):
        raise TypeError(f"{reference} is also {other}, which would change with it")
    return place_in(function)


def second_name(function: FunctionType, reference: str) -> str:
    """Another name of a function, in its module or in a class there or related to its own."""
    owner, name = owner_of(reference)
    module = sys.modules[module_of(reference)]
    classes = [each for each in vars(module).values() if isinstance(each, type)]
    scopes: list[Any] = [module, *(each for each in classes if each.__module__ == module.__name__)]
    scopes += [*owner.__mro__, *_below(owner)] if isinstance(owner, type) else []
    for scope in scopes:
        for each, held in list(vars(scope).items()):
            if underlying(held) is function and not (scope is owner and each == name):
                return f"{scope.__name__}.{each}"
    return ""


def check_values(definition: Definition) -> None:
    """Verify that each literal that a definition reads has the value in its source."""
    for reference, text in definition.values.items():
        if not _is_ready(reference):
            continue  # not imported yet, or only when the function that reads it runs
        owner: Any = sys.modules[module_of(reference)]
        *classes, name = qualname_of(reference).split(".")
        for each in classes:
            owner = vars(owner).get(each) if owner is not None else None
        held = raw(owner, name) if owner is not None else MISSING
        read = f"{reference}, which {definition.reference} reads,"
        if held is MISSING and not classes:
            raise Conflict(f"{read} is gone from memory")
        # A class may replace its literals when it is made, as an enumeration does with members.
        is_kept = isinstance(held, int | float | str | bytes | tuple | None)
        if (is_kept or not classes) and repr(held) != text and shown_at(owner, name) is None:
            raise Conflict(f"{read} is {held!r:.80} in memory and {text} in the source")


def check_relatives(reference: str, verified: Collection[str]) -> None:
    """Verify that no base or subclass has the attribute to be added, except `verified` references.

    The new attribute would hide a base's, and a subclass's would hide the new one.
    """
    owner, name = owner_of(reference)
    if not isinstance(owner, type):
        return
    for each in (*owner.__mro__[1:-1], *_below(owner)):
        of = f"{each.__module__}:{each.__qualname__}.{name}"
        if name in vars(each) and of not in verified:
            what = "inherited from" if issubclass(owner, each) else "overridden in"
            raise Conflict(f"{reference} exists already: it is {what} {describe(each)}")


def _around_ours(reference: str, held: Any, value: Any) -> tuple[str, ...]:
    """The foreign wrappers around an attribute of ours, if its name still leads to our value."""
    if held is MISSING:
        raise Conflict(f"{reference} is gone from memory")
    links = list(chain(held))
    for depth, link in enumerate(links):
        if link is underlying(value) and first_replacement(links[: depth + 1]) is None:
            return tuple(map(describe, links[:depth]))
    if held is value:
        return ()
    raise Conflict(f"{reference} is replaced by {describe(held)}")


def _below(owner: type) -> Iterator[type]:
    below: list[type] = type.__subclasses__(owner)
    for each in below:
        yield each
        yield from _below(each)


def _check_bases(held: type, definition: Definition) -> None:
    """Verify that a class has the bases that its source names."""
    names = definition.bases
    bases = [base for base in held.__bases__ if base is not object]
    module = sys.modules.get(module_of(definition.reference))
    what = f"{held.__module__}:{held.__qualname__}"
    # Python replaces a base that is not a class, such as NamedTuple, when it makes the class.
    if any(not isinstance(getattr(module, name, type), type) for name in names if name):
        return
    for base, name in zip(bases, names, strict=False):
        if name and base.__name__ != name and getattr(module, name, None) is not base:
            raise Conflict(f"{what} has the base {describe(base)}, not {name}")
    # An unnamed base, such as Generic[T], may stand for several bases or for none.
    if all(names) and len(bases) != len([name for name in names if name != "object"]):
        raise Conflict(f"{what} has {len(bases)} bases, not {len(names)}")


def is_compiled_from(code: CodeType, definition: Definition) -> bool:
    """Whether `code`, which `is_at` a definition, is what this Python compiles from its source."""
    try:
        lines, compiled = _file(definition.path)
        # The file may have changed since the verdict.
        return digest_of(text_of(lines, definition.lines)) == definition.own and code in compiled
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
    is_first = any(code.co_firstlineno == first for first, _ in definition.lines)
    return is_first and _same_file(code.co_filename, definition.path)


@lru_cache(maxsize=1024)
def _same_file(name: str, path: Path) -> bool:
    return name == str(path) or Path(name).resolve() == path.resolve()
