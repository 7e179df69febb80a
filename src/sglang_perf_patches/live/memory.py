"""A patch in this process, and whether memory holds what it changes and relies on.

That is stock's own object, whose code may be exchanged for ours (`switch`). Code counts as stock's
if Python compiles it from the definition's source. The same file name and first line are not
enough: a stale ``.pyc`` may have been loaded, or the function's code exchanged.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

from ..compat.definition import OF_NAME, Definition, TreeError, digest_of, lines_of, text_of
from ..model.patch import Patch, Variant, module_of, qualname_of
from ..model.patching import MISSING, Make
from ..model.state import RunFlag, State
from .published import is_ready
from .switch import PREFIX, Attribute, place_at, place_in, raw, shown_at, stock_code
from .wrappers import Conflict, chain, describe, is_function, links_to, owner_of, underlying

logger = logging.getLogger("sglang_perf_patches")

_compiled: dict[tuple[str, str], CodeType] = {}
"""Reference and digest of its source → code that is known to be compiled from that."""


@dataclass(eq=False)
class Member:
    """One patch in this process."""

    patch: Patch
    gate: Callable[[str], None]
    verdict: Any = None  # the `compat.verdict.Verdict` on the installed sglang, if it was selected
    status: tuple[State, str] = ("off", "not chosen")  # one object: nobody reads half of a change
    end: tuple[State, str] | None = None  # its status once it is removed, if it is marked for that
    ran: RunFlag = field(default_factory=RunFlag)
    # The work that it may hold between its calls: whether it holds none, and what ends that work,
    # worded to follow "until".
    drains: list[tuple[Callable[[], bool], str]] = field(default_factory=list)
    gated: str = ""  # why its code now runs only stock's
    layers: list[tuple[str, Any, Make]] = field(default_factory=list)  # its changes, with places
    # By the last verification: reference → function, also of what it needs; the reason to show if
    # other code wraps what it changes; and the identity snapshot.
    stock: dict[str, FunctionType] = field(default_factory=dict)
    wrapped: str = ""
    seen: list[Any] = field(default_factory=list)

    @property
    def word(self) -> State:
        """The state, without its reason."""
        return self.status[0]

    def definitions(self) -> Iterator[Definition]:
        """What it changes or relies on, as read from the source; of classes, also the functions."""
        for definition in self.verdict.definitions.values():
            yield definition
            yield from definition.members

    def install(self) -> list[tuple[str, Make]]:
        """Run the install function; returns the changes that it declares, in order.

        It raises what that does, or RuntimeError for a missing change.
        """
        self.gated, variant = "", self.verdict.variant
        patching = Patching(self.patch.id, variant, self.ran, self.gate)
        self.drains = patching.drains
        variant.install(patching)
        changed = [reference for reference, _ in patching.changes]
        if unchanged := {*variant.targets, *variant.adds}.difference(changed):
            raise RuntimeError(f"its install function left {min(unchanged)} unchanged")
        return patching.changes

    def waits_for(self) -> str:
        """The work that must end before it may be removed; "" if it holds none."""
        for is_idle, waits_for in self.drains:
            try:
                if is_idle():
                    continue
            except Exception:  # unknown counts as busy
                logger.debug("%s: is it idle?", self.patch.id, exc_info=True)
            return waits_for
        return ""

    def forget(self) -> None:
        """Drop its layers, and what they computed."""
        for _, place, make in self.layers:
            place.forget(make)
        self.layers = []


@dataclass(eq=False)
class Patching:
    """What an install function gets; see `model.patching.Patching`.

    Only what the patch shows refers to it, so what it holds is freed when the patch is taken off.
    """

    id: str
    variant: Variant
    ran: RunFlag
    gate: Callable[[str], None]
    changes: list[tuple[str, Make]] = field(default_factory=list)
    drains: list[tuple[Callable[[], bool], str]] = field(default_factory=list)
    state: SimpleNamespace = field(default_factory=SimpleNamespace)

    def module(self, name: str) -> ModuleType:
        """See `model.patching.Patching.module`."""
        # The variant's modules are complete, even if their imports are still on the stack.
        if name not in self.variant.modules() and not is_ready(name):
            raise RuntimeError(f"module {name} has not been imported")
        return sys.modules[name]

    def get(self, reference: str) -> Any:
        """See `model.patching.Patching.get`."""
        return raw(*owner_of(reference))

    def override(self, reference: str, make: Make) -> None:
        """See `model.patching.Patching.override`."""
        if reference not in self.variant.targets + self.variant.adds:
            raise RuntimeError(f"{reference} is not declared as a target of {self.id}")
        self.changes.append((reference, make))

    def drain(self, is_idle: Callable[[], bool], waits_for: str) -> None:
        """See `model.patching.Patching.drain`."""
        self.drains.append((is_idle, waits_for))


def with_dependents(members: Iterable[Member], among: Collection[Member]) -> list[Member]:
    """Members, and those of `among` that require any of them, directly or not."""
    together = list(dict.fromkeys(members))
    for member in together:  # the loop also visits what it appends
        id = member.patch.id
        together += [each for each in among if id in each.patch.requires and each not in together]
    return together


def forget_results(members: Iterable[Member]) -> None:
    """Clear ``lru_cache``s around what members change: they hold what another function returned."""
    for reference in {reference for each in members for reference, _, _ in each.layers}:
        with contextlib.suppress(Conflict):
            for link in chain(raw(*owner_of(reference))):
                getattr(link, "cache_clear", lambda: None)()


def verify(member: Member) -> None:
    """Check every definition of a patch in memory, each once; note what its functions are.

    It raises `Conflict` if other code replaced one, or already added what the patch would add.
    """
    variant, wrappers = member.verdict.variant, list[str]()
    stock: dict[str, FunctionType] = {}
    definitions = {each.reference: each for each in member.definitions()}
    for reference, definition in definitions.items():
        if _is_ready(reference):  # else it is verified when its import ends
            check_values(definition)
            around = _check(definition, stock)
            wrappers += map(describe, around if reference in variant.targets else ())
    for reference, place, _ in member.layers:
        if not _is_ready(reference):
            continue
        if isinstance(place, Attribute):
            is_ours = place.owner is owner_of(reference)[0]
        else:
            is_on = place.value is not place.stock
            is_ours = stock[reference] is place.function and place.stands() == is_on
        if not is_ours:
            why = f"somebody restored it, or reloaded {module_of(reference)}"
            raise Conflict(f"{reference} is stock's own again: {why}")
    for reference in variant.adds:
        owner, name = owner_of(reference)
        if (shown := shown_at(owner, name)) is not None:
            wrappers += map(describe, _around(shown, reference))
        elif (held := raw(owner, name)) is not MISSING:
            raise Conflict(f"{reference} exists already: {describe(held)}")
        else:
            check_relatives(reference, definitions)
    member.stock = stock
    member.wrapped = f"wrapped by {'; '.join(wrappers)}" if wrappers else ""


def verify_if_changed(member: Member) -> None:
    """`verify`, unless nothing was replaced since the last time."""
    now = identity_snapshot(member)
    if len(now) != len(member.seen) or not all(map(operator.is_, now, member.seen)):
        verify(member)
        member.seen = now


def identity_snapshot(member: Member) -> list[Any]:
    """Every object that a replacement of anything relied on would exchange."""
    # This runs once a second for every live patch. So it only collects objects, to compare by
    # identity; `verify` reads and compiles source when one of them has changed.
    definitions = list(member.definitions())
    read = (name for each in definitions for name in each.values)
    own = (each.reference for each in definitions)
    names = dict.fromkeys((*own, *member.verdict.variant.adds, *read))
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
    functions = (getattr(place, "function", None) for _, place, _ in member.layers)
    objects += (getattr(function, "__code__", None) for function in functions)
    objects += map(is_ready, dict.fromkeys(map(module_of, names)))
    return objects


def place_of(reference: str, member: Member) -> Any:
    """The place of what was just verified; raises TypeError if its code can't be exchanged."""
    owner, name = owner_of(reference)
    held, function = raw(owner, name), member.stock.get(reference)
    if function is None:
        return place_at(owner, name)
    if isinstance(held, property):
        raise TypeError("a property is not exchangeable")
    # A foreign wrapper may keep what it wraps under a second name.
    if underlying(held) is function and (other := second_name(function, reference)):
        raise TypeError(f"{reference} is also {other}, which would change with it")
    return place_in(function)


def _is_ready(reference: str) -> bool:
    return is_ready(module_of(reference))


def _check(definition: Definition, stock: dict[str, FunctionType]) -> list[Any]:
    """Verify a definition's object, and note its function; returns other code's wrappers."""
    reference = definition.reference
    owner, name = owner_of(reference)
    if (shown := shown_at(owner, name)) is not None:
        return _around(shown, reference)
    held = raw(owner, name)
    if held is MISSING:
        raise Conflict(f"{reference} is gone from memory")
    if definition.is_class:
        its_own, _ = owner_of(f"{reference}.member")  # whatever is in it: the class itself
        _check_bases(its_own, definition)
        return []
    if isinstance(owner, type):
        _check_bases(owner, definition)
    if not definition.is_function:
        return []

    def is_there(link: Any) -> bool:
        return is_function(link) and is_at(link.__code__, definition)

    *wrappers, function = links_to(reference, held, is_there)
    _check_function(function, definition)
    stock[reference] = function
    # Stock's own decorators wrap too; only further wrappers come from other code.
    return wrappers[: max(0, len(wrappers) - definition.decorators)]


def _around(place: Attribute, reference: str) -> list[Any]:
    """The foreign wrappers around an attribute of ours, if its name still leads to our value."""
    held, value = raw(place.owner, place.name), place.value
    if held is MISSING:
        raise Conflict(f"{reference} is gone from memory")
    if held is value:
        return []
    return links_to(reference, held, lambda link: link is underlying(value))[:-1]


def _check_function(function: FunctionType, definition: Definition) -> None:
    reference, code = definition.reference, stock_code(function)
    if any(name.startswith(PREFIX) for name in code.co_names):
        raise Conflict(f"{reference} is patched by another copy: {describe(function)}")
    if code is not _compiled.get((reference, definition.own)):
        if not is_compiled_from(code, definition):
            why = "the file or the code in memory was changed"
            raise Conflict(
                f"{reference} in memory is not what its source said when it was judged: {why}"
            )
        _compiled[reference, definition.own] = code
    # A copy in another module has equal code, but its own globals.
    if function.__globals__ is not vars(sys.modules[module_of(reference)]):
        raise Conflict(f"{reference} in memory reads the globals of other code")
    if changed := changed_default(function, definition):
        raise Conflict(f"the default of {changed} of {reference} was changed")


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
