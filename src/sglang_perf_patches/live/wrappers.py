"""Follows wrappers from what a name holds to stock's function, and names the owner of each.

A *wrapper* calls what it wraps. It works together with a patch, and is only reported. A
*replacement* does not call it, so the patch stays off and the other code wins.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeGuard

import wrapt

from ..model.patch import module_of, qualname_of
from .switch import callee_of, function_in

_PROXY: Any = getattr(wrapt, "BaseObjectProxy", wrapt.ObjectProxy)  # the former from wrapt 2 on


class Conflict(Exception):
    """A name holds another package's object; the message says which and where."""


def owner_of(reference: str) -> tuple[Any, str]:
    """The module or class that binds the last name of a reference, and that name.

    It raises `Conflict` if the module is not loaded, or a class in between is gone or replaced.
    """
    name = module_of(reference)
    owner: Any = sys.modules.get(name)
    if owner is None:
        raise Conflict(f"module {name} is not loaded")
    *classes, last = qualname_of(reference).split(".")
    for depth, class_name in enumerate(classes, 1):
        owner = vars(owner).get(class_name)
        qualname = ".".join(classes[:depth])
        is_class = isinstance(owner, type)
        if not is_class or (owner.__module__, owner.__qualname__) != (name, qualname):
            raise Conflict(f"{name}:{qualname} is replaced by {describe(owner)}")
    return owner, last


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
    if issubclass(type(held), property):
        return held.fget
    if issubclass(type(held), functools.cached_property):
        return held.func
    return function_in(held)


def is_function(link: Any) -> TypeGuard[FunctionType]:
    """Whether a link is a plain function, not a proxy of one."""
    return type(link) is FunctionType


def links_to(reference: str, held: Any, is_it: Callable[[Any], bool]) -> list[Any]:
    """The `chain` of what a reference holds, down to the first link that `is_it`.

    It raises `Conflict` if there is none, or if a link does not call the next one.
    """
    links = list(chain(held))
    count = next((count for count, link in enumerate(links, 1) if is_it(link)), 0)
    found = links[:count]
    replacing = [outer for outer, inner in itertools.pairwise(found) if not _calls(outer, inner)]
    if replacing or not found:
        raise Conflict(f"{reference} is replaced by {describe((replacing or [held])[0])}")
    return found


def describe(held: Any) -> str:
    """``module.name of OWNER``, where OWNER is the plugin, else the file or the module."""
    link = underlying(held)
    behind = _behind(link)
    if behind is not None:
        return describe(behind)
    code = getattr(link, "__code__", None)
    file = code.co_filename if isinstance(code, CodeType) else None
    # Functions and objects may carry the names of what they wrap; globals and classes do not.
    source: Any = link if file or isinstance(link, type) else type(link)
    module = _module_at(file)
    if module is None and is_function(link):
        module = link.__globals__.get("__name__")
    module = module or getattr(source, "__module__", None) or type(link).__module__
    # functools.wraps gives a function the wrapped one's name; its code keeps its own name.
    name = getattr(source, "__qualname__", None) or type(link).__qualname__
    plain = getattr(code, "co_name", name)  # Python 3.10 knows no other one
    name = getattr(code, "co_qualname", name if name.endswith(plain) else plain)
    return f"{module}.{name} of {plugin_with(module.partition('.')[0]) or file or module}"


def _calls(outer: Any, inner: Any) -> bool:
    """Whether a link calls what it names as wrapped, as far as can be told without calling it."""
    # ``__wrapped__`` proves nothing: ``functools.wraps`` sets it also on a function that never
    # calls the original, as the HookRegistry's REPLACE does. What calls the original also holds it
    # elsewhere: in its closure, its defaults or its attributes.
    if is_function(outer):
        kept = [*_cells(outer).values(), *(outer.__defaults__ or ())]
        kept += (outer.__kwdefaults__ or {}).values()
    else:
        call = inspect.getattr_static(type(outer), "__call__", None)
        if issubclass(type(outer), _PROXY) or not is_function(call):
            return True  # the latter is implemented in C, like functools.lru_cache's result
        attributes = getattr(outer, "__dict__", {})
        kept = [value for name, value in attributes.items() if name != "__wrapped__"]
    return any(_reached(value) is inner for value in kept)


def _reached(value: Any) -> Any:
    """The function that a bound method, a descriptor or a partial calls; else the value."""
    value = value.func if isinstance(value, functools.partial) else value
    return value.__func__ if isinstance(value, MethodType) else underlying(value)


def _cells(function: FunctionType) -> dict[str, Any]:
    contents = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not filled yet
            contents[name] = cell.cell_contents
    return contents


def _behind(link: Any) -> Any:
    """The author's own object in a proxy, in sglang's wrapper of a hook, or in our trampoline."""
    if issubclass(type(link), _PROXY):
        wrapper = getattr(link, "_self_wrapper", None)
        return type(link) if wrapper is None else wrapper
    if not is_function(link):
        return None
    is_hook = link.__code__.co_filename.endswith("hook_registry.py")
    hook = _cells(link).get("hook") if is_hook else None
    return callee_of(link) if hook is None else hook


def _module_at(file: str | None) -> str | None:
    for name, module in list(sys.modules.items()) if file else ():
        if isinstance(module, ModuleType) and getattr(module, "__file__", None) == file:
            return name
    return None


@functools.lru_cache(maxsize=256)
def plugin_with(package: str) -> str | None:
    """The distribution with a sglang plugin in that top-level package; None if there is none."""
    with contextlib.suppress(Exception):  # damaged metadata must not make a message fail
        for entry_point in metadata.entry_points(group="sglang.srt.plugins"):
            if entry_point.dist and re.split("[.:]", entry_point.value)[0] == package:
                return entry_point.dist.name
    return None
