"""What may be an attribute of a class or a module: a function, or what holds functions."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from .wrappers import is_function


def functions_in(value: Any) -> dict[str, Any]:
    """The functions in an attribute, by their part in it."""
    if type(value) is property:
        parts = {"_get": value.fget, "_set": value.fset, "_delete": value.fdel}
        return {part: function for part, function in parts.items() if function is not None}
    if type(value) in (staticmethod, classmethod):
        return {"": value.__func__}
    if type(value) is functools.cached_property:
        return {"": value.func}
    return {"": value}


def is_of_kind(value: Any, like: Any) -> bool:
    """Whether one inert attribute can stand for both."""
    if not all(is_function(function) for function in functions_in(like).values()):
        return False
    if is_function(like):
        # What is called with its object as the first argument.
        return is_function(value) or (
            callable(value) and hasattr(type(value), "__get__") and type(value) not in _DESCRIPTORS
        )
    return type(value) is type(like) and all(map(callable, functions_in(value).values()))


_DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property)


def of_kind(like: Any, functions: dict[str, Any]) -> Any:
    """An attribute of the same kind that holds these functions, by their part in it."""
    if type(like) is property:
        get, put, delete = (functions.get(part) for part in ("_get", "_set", "_delete"))
        return property(get, put, delete, like.__doc__)
    return functions[""] if is_function(like) else type(like)(functions[""])


def refuses(name: str) -> Callable[..., Any]:
    """What a property calls that has no such part."""

    def refuses(*_: Any) -> Any:
        raise AttributeError(name)

    return refuses


def copy_of(function: FunctionType) -> FunctionType:
    """The same function under another identity."""
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    copy.__doc__ = function.__doc__
    if sys.version_info >= (3, 14):  # where to read the annotations evaluates them
        copy.__annotate__ = function.__annotate__
    else:
        copy.__annotations__ = function.__annotations__
    copy.__dict__.update(function.__dict__)
    return copy
