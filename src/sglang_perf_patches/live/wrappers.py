"""Follows wrappers from what a name holds to stock's function, and names the owner of each.

A *wrapper* calls what it wraps. It works together with a patch, and is only reported. A
*replacement* does not call it, so the patch stays off and the other code wins.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeGuard

import wrapt

from ..model.patch import module_of, qualname_of
from ..model.patching import MISSING
from .trampoline import callee_of

_PROXY: Any = getattr(wrapt, "BaseObjectProxy", wrapt.ObjectProxy)  # the former from wrapt 2 on
_MARK = "__sglang_perf_patches__"
_THIS_COPY = object()
_PLUGINS = "sglang.srt.plugins"


class Foreign(Exception):
    """A name holds another package's object; the message says which and where."""


def owner_of(reference: str) -> tuple[Any, str]:
    """The module or class that binds the last name of a reference, and that name.

    Raises:
        Foreign: the module is not loaded, or a class in the reference is gone or replaced.
    """
    name = module_of(reference)
    owner: Any = sys.modules.get(name)
    if owner is None:
        raise Foreign(f"module {name} is not loaded")
    *classes, last = qualname_of(reference).split(".")
    for depth, class_name in enumerate(classes, 1):
        owner = vars(owner).get(class_name)
        qualname = ".".join(classes[:depth])
        if not isinstance(owner, type) or not is_class_of(owner, name, qualname):
            raise Foreign(f"{name}:{qualname} is replaced by {describe(owner)}")
    return owner, last


def raw(owner: Any, name: str) -> Any:
    """The attribute in the owner's own ``__dict__``; `MISSING` if it has none."""
    return vars(owner).get(name, MISSING)


def chain(held: Any) -> Iterator[Any]:
    """What a name holds, then what that names as wrapped, and so on, outermost first."""
    seen: set[int] = set()
    link = underlying(held)
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        # Triton's kernels and autotuners store the wrapped function as `fn`.
        inner = getattr(link, "__wrapped__", None)
        if inner is None and not is_function(link) and not isinstance(link, type):
            inner = getattr(link, "fn", None)
        link = underlying(inner)


def underlying(held: Any) -> Any:
    """The function in a descriptor (of a property, its getter); else the object itself."""
    # Checks the type, because `isinstance` on a wrapt proxy checks the wrapped object.
    if issubclass(type(held), staticmethod | classmethod):
        return held.__func__
    if issubclass(type(held), property):
        return held.fget
    if issubclass(type(held), functools.cached_property):
        return held.func
    return held


def is_function(link: Any) -> TypeGuard[FunctionType]:
    """Whether a link is a plain function, not a proxy of one."""
    return type(link) is FunctionType


def wrappers_around(held: Any, inner: Any, decorators: int = 0) -> tuple[str, ...] | None:
    """The foreign wrappers between what a name holds and our object; None if ours is not reached.

    Args:
        held: what the name holds.
        inner: the object that we assigned, or the stock function whose code we exchanged.
        decorators: the number of innermost wrappers that are stock's own.
    """
    links = list(chain(held))
    target = underlying(inner)
    for depth, link in enumerate(links):
        if link is target:
            if first_replacement(links[: depth + 1]) is None:
                return foreign(links[: max(0, depth - decorators)])
            return None
    return None


def first_replacement(links: Iterable[Any]) -> Any:
    """The outermost link that does not call the next one; None if each does."""
    for outer, inner in itertools.pairwise(links):
        if not _calls(outer, inner):
            return outer
    return None


def foreign(links: Iterable[Any]) -> tuple[str, ...]:
    """The wrappers of other packages among `links`, each described with its owner."""
    return tuple(describe(link) for link in links if not _is_marked_by_this_copy(link))


def look_like(value: Any, inner: Any) -> None:
    """Give a function of ours the name, signature and attributes of what it replaces."""
    function, stock = underlying(value), underlying(inner)
    if not is_function(function) or not is_function(stock):
        return
    if function is stock or _is_marked_by_this_copy(function):
        return
    functools.update_wrapper(function, stock)
    function.__dict__[_MARK] = (_THIS_COPY, id(function))
    if value is not function:  # a descriptor, which copied these names at its creation
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            with contextlib.suppress(AttributeError, TypeError):
                setattr(value, name, getattr(inner, name))


def is_of_another_copy(link: Any) -> bool:
    """Whether a link was made by another copy of this project in this process."""
    marked = _mark(link)
    return marked is not None and marked[1] == id(link) and marked[0] is not _THIS_COPY


def describe(held: Any) -> str:
    """``module.name of OWNER``, where OWNER is the plugin, else the file or the module."""
    link = underlying(held)
    hook = _hook_inside(link)
    if hook is not None:
        return describe(hook)
    if issubclass(type(link), _PROXY):
        wrapper = getattr(link, "_self_wrapper", None)
        return describe(type(link) if wrapper is None else wrapper)
    if is_function(link):
        callee = callee_of(link)
        if callee is not None:
            return describe(callee)
    code = getattr(link, "__code__", None)
    file = code.co_filename if isinstance(code, CodeType) else None
    # Functions and objects may carry the names of what they wrap; globals and classes do not.
    source: Any = link if file or isinstance(link, type) else type(link)
    module = _module_at(file)
    if module is None and is_function(link):
        module = link.__globals__.get("__name__")
    module = module or getattr(source, "__module__", None) or type(link).__module__
    # functools.wraps gives a function the wrapped one's name; its code keeps its own name.
    name = getattr(code, "co_qualname", None) or getattr(source, "__qualname__", None)
    name = name or type(link).__qualname__
    return f"{module}.{name} of {plugin_with(module.partition('.')[0]) or file or module}"


def _calls(outer: Any, inner: Any) -> bool:
    """Whether a link calls what it names as wrapped, as far as can be told without calling it."""
    # ``__wrapped__`` proves nothing: ``functools.wraps`` sets it also on a function that never
    # calls the original, as the HookRegistry's REPLACE does. What calls the original also holds it
    # elsewhere: in its closure, its defaults or its attributes.
    if is_function(outer):
        return _holds(_kept_by(outer), inner)
    if issubclass(type(outer), _PROXY):
        return True
    attributes = [vars(base) for base in type(outer).__mro__]
    call = next((each["__call__"] for each in attributes if "__call__" in each), None)
    if not is_function(call):
        return True  # implemented in C, like functools.lru_cache's result
    if _holds(_state_of(outer), inner) or _holds(_kept_by(call), inner):
        return True
    # The object may call through the attribute itself.
    return any(
        _loads_wrapped(method.__code__)
        for each in attributes
        for method in filter(is_function, each.values())
    )


def _holds(values: Iterable[Any], inner: Any) -> bool:
    for value in values:
        kept = value.__func__ if isinstance(value, MethodType) else underlying(value)
        if kept is inner or (isinstance(kept, functools.partial) and kept.func is inner):
            return True
    return False


def _kept_by(function: FunctionType) -> list[Any]:
    """The contents of a function's closure, and its defaults."""
    kept = [*_cells(function).values(), *(function.__defaults__ or ())]
    return kept + list((function.__kwdefaults__ or {}).values())


def _state_of(link: Any) -> list[Any]:
    """The attributes of an object, except ``__wrapped__``."""
    state = dict(getattr(link, "__dict__", {}))
    state.pop("__wrapped__", None)
    for base in type(link).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            state.setdefault(name, getattr(link, name, None))
    return list(state.values())


def _loads_wrapped(code: CodeType) -> bool:
    """Whether code, or a function in it, reads an attribute ``__wrapped__``."""
    return any(
        instruction.argval == "__wrapped__" and instruction.opname.startswith("LOAD_")
        for instruction in dis.get_instructions(code)
    ) or any(_loads_wrapped(inside) for inside in code.co_consts if isinstance(inside, CodeType))


def _cells(function: FunctionType) -> dict[str, Any]:
    contents = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            contents[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    return contents


def _mark(link: Any) -> tuple[Any, int] | None:
    return link.__dict__.get(_MARK) if is_function(link) else None


def _is_marked_by_this_copy(link: Any) -> bool:
    marked = _mark(link)
    # functools.wraps copies the attribute too, but not what it names.
    return marked is not None and marked[0] is _THIS_COPY and marked[1] == id(link)


def _hook_inside(link: Any) -> Any:
    """The plugin's own function in a wrapper that sglang's HookRegistry made for it."""
    if is_function(link) and link.__code__.co_filename.endswith("hook_registry.py"):
        return _cells(link).get("hook")
    return None


def _module_at(file: str | None) -> str | None:
    if file is None:
        return None
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and getattr(module, "__file__", None) == file:
            return name
    return None


def is_class_of(held: type, module: str, qualname: str) -> bool:
    """Whether a class was defined under that name in that module."""
    return held.__module__ == module and held.__qualname__ == qualname


@functools.lru_cache(maxsize=256)
def plugin_with(package: str) -> str | None:
    """The distribution with a sglang plugin in that top-level package; None if there is none."""
    with contextlib.suppress(Exception):  # damaged metadata must not make a message fail
        for entry_point in metadata.entry_points(group=_PLUGINS):
            if entry_point.dist and re.split("[.:]", entry_point.value)[0] == package:
                return entry_point.dist.name
    return None
