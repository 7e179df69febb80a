"""Code that calls what the dispatch table shows at the moment (see `dispatch_table`).

It has stock's own parameters, file, first line and name, so that signatures, tracebacks and
compilers see the function that they know. A function of ours closes over the dispatch table. A
stock function whose code is exchanged reads it from its module, under a private name, because a
constant that is no literal is more than ``torch.compile`` can represent.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

PREFIX = "_sglang_perf_patches_"
"""How the private names begin."""

_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ITERABLE_COROUTINE
_NOT_PLAIN = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def exchangeable(function: FunctionType, dispatch: str, key: str) -> CodeType:
    """Code for `function` that passes every argument on to ``dispatch.now.key``.

    Args:
        function: a plain function, see `require_plain`.
        dispatch: the global of its module that holds the dispatch table.
        key: the attribute of the dispatch table.
    """
    code = function.__code__
    # Python replaces a function's code only by code with as many free variables. Dead code names
    # them, at no cost per call.
    free = ", ".join(code.co_freevars)
    keep = f"  if False: ({free},)\n" if free else ""
    return _inner(code, free, keep, f"{dispatch}.now.{key}", code.co_freevars)


def forwarder(function: FunctionType, dispatch: Any, key: str) -> FunctionType:
    """A function like `function`, with its defaults, that calls ``dispatch.now.key``.

    Raises:
        TypeError: `function` is an asynchronous generator.
    """
    code = _inner(function.__code__, PREFIX, "", f"{PREFIX}.now.{key}", (PREFIX,))
    calling = FunctionType(
        code,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        (_cell(dispatch),),
    )
    calling.__kwdefaults__ = function.__kwdefaults__
    return calling


def require_plain(function: FunctionType) -> None:
    """Refuse a function whose call does not run its code.

    Raises:
        TypeError: it is a coroutine or a generator function.
    """
    if function.__code__.co_flags & _NOT_PLAIN:
        raise TypeError(f"{function.__qualname__} is a coroutine or generator: not exchangeable")


def callee_of(function: FunctionType) -> Any:
    """What a function calls whose code is of this kind, of this copy or another; else None."""
    code = function.__code__
    # The dispatch table's own name and the key may be one: Python keeps a name once.
    names = [name for name in code.co_names if name.startswith(PREFIX)]
    if not names:
        return None
    if code.co_freevars == (PREFIX,) and function.__closure__:
        dispatch = function.__closure__[0].cell_contents
    else:
        dispatch = function.__globals__.get(names[0])
    return getattr(getattr(dispatch, "now", None), names[-1], None)


def _inner(code: CodeType, outer: str, keep: str, callee: str, free: tuple[str, ...]) -> CodeType:
    if code.co_flags & inspect.CO_ASYNC_GENERATOR:
        raise TypeError(f"{code.co_name} is an asynchronous generator: not exchangeable")
    parameters, arguments = _parameters(code)
    kind, result = "def", f"{callee}({arguments})"
    if code.co_flags & inspect.CO_COROUTINE:
        kind, result = "async def", f"await {result}"
    elif code.co_flags & _GENERATOR:
        result = f"(yield from {result})"
    syntax = ast.parse(
        f"def outer({outer}):\n {kind} inner({parameters}):\n{keep}  return {result}\n"
    )
    for node in ast.walk(syntax):
        if hasattr(node, "lineno"):
            place: Any = node
            place.lineno = place.end_lineno = code.co_firstlineno
    inner = compile(syntax, code.co_filename, "exec", dont_inherit=True)
    for _ in ("outer", "inner"):
        inner = next(constant for constant in inner.co_consts if isinstance(constant, CodeType))
    replacements: dict[str, Any] = {"co_name": code.co_name, "co_freevars": free}
    if sys.version_info >= (3, 11):
        replacements["co_qualname"] = code.co_qualname
    return inner.replace(**replacements)


def _cell(value: Any) -> Any:
    return (lambda: value).__closure__[0]  # type: ignore[index]


def _parameters(code: CodeType) -> tuple[str, str]:
    """A function's parameters as a definition has them, and as a call passes them on."""
    names = list(code.co_varnames)
    positional = names[: code.co_argcount]
    keyword = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = names[code.co_argcount + code.co_kwonlyargcount :]
    parameters, arguments = list(positional), list(positional)
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    if code.co_flags & inspect.CO_VARARGS:
        several = f"*{rest.pop(0)}"
        parameters.append(several)
        arguments.append(several)
    elif keyword:
        parameters.append("*")
    parameters += keyword
    arguments += [f"{name}={name}" for name in keyword]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        keywords = f"**{rest.pop(0)}"
        parameters.append(keywords)
        arguments.append(keywords)
    return ", ".join(parameters), ", ".join(arguments)


# -- what may be an attribute of a class or a module: a function, or what holds functions ----------


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
    """Whether one forwarder can stand for both."""
    if not all(type(function) is FunctionType for function in functions_in(like).values()):
        return False
    if type(like) is FunctionType:
        # What is called with its object as the first argument.
        return type(value) is FunctionType or (
            callable(value) and hasattr(type(value), "__get__") and type(value) not in _DESCRIPTORS
        )
    return type(value) is type(like) and all(map(callable, functions_in(value).values()))


_DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property)


def of_kind(like: Any, functions: dict[str, Any]) -> Any:
    """An attribute of the same kind that holds these functions, by their part in it."""
    if type(like) is property:
        get, put, delete = (functions.get(part) for part in ("_get", "_set", "_delete"))
        return property(get, put, delete, like.__doc__)
    return functions[""] if type(like) is FunctionType else type(like)(functions[""])


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
