"""Forwarders: code that calls the function that the dispatch table holds (see `dispatch_table`).

A forwarder has stock's parameters, file, first line and name, so that signatures, tracebacks and
compilers see the function that they know. A new function closes over the dispatch table. A stock
function whose code is exchanged reads the table from a private global of its module: its number of
free variables is fixed, and ``torch.compile`` can't represent a constant that is not a literal.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from types import CodeType, FunctionType
from typing import Any

PREFIX = "_sglang_perf_patches_"
"""Prefix of the private globals and keys."""

_NOT_PLAIN = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_METHODS = (staticmethod, classmethod)


def exchangeable(function: FunctionType, dispatch: str, key: str) -> CodeType:
    """Code for `function` that passes every argument on to ``dispatch.now.key``.

    Args:
        function: a plain function, see `require_plain`.
        dispatch: the global of its module that holds the dispatch table.
        key: the attribute of the dispatch table.
    """
    code = function.__code__
    # Python requires new code to have as many free variables as the old. Dead code mentions them,
    # which costs nothing per call.
    free = ", ".join(code.co_freevars)
    keep = f"  if False: ({free},)\n" if free else ""
    return _inner(code, free, keep, f"{dispatch}.now.{key}", code.co_freevars)


def forwarder(function: FunctionType, dispatch: Any, key: str) -> FunctionType:
    """A function like `function`, with its defaults, that calls ``dispatch.now.key``.

    Raises:
        TypeError: see `require_plain`.
    """
    require_plain(function)
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
    """Refuse a function whose body does not run during the call.

    Raises:
        TypeError: it is a coroutine or a generator function.
    """
    if function.__code__.co_flags & _NOT_PLAIN:
        raise TypeError(f"{function.__qualname__} is a coroutine or generator: not exchangeable")


def callee_of(function: FunctionType) -> Any:
    """What a forwarder calls at the moment, also one of another copy of this project; else None."""
    code = function.__code__
    # Exchanged code uses one name as the global and as the key; Python stores it once.
    names = [name for name in code.co_names if name.startswith(PREFIX)]
    if not names:
        return None
    if code.co_freevars == (PREFIX,) and function.__closure__:
        dispatch = function.__closure__[0].cell_contents
    else:
        dispatch = function.__globals__.get(names[0])
    return getattr(getattr(dispatch, "now", None), names[-1], None)


def _inner(code: CodeType, outer: str, keep: str, callee: str, free: tuple[str, ...]) -> CodeType:
    parameters, arguments = _parameters(code)
    syntax = ast.parse(
        f"def outer({outer}):\n def inner({parameters}):\n{keep}  return {callee}({arguments})\n"
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
    """A function's parameters as text: for its ``def`` line, and for a call that passes them on."""
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


# -- attributes that hold functions: functions themselves, static methods and class methods --------


def function_in(value: Any) -> Any:
    """The function in a static or class method; else the value itself."""
    return value.__func__ if type(value) in _METHODS else value


def is_of_kind(value: Any, like: Any) -> bool:
    """Whether a forwarder made for `like` can call `value`.

    Raises:
        TypeError: `like` computes in another way than by a call, such as a property.
    """
    if type(like) in (property, functools.cached_property):
        raise TypeError(f"a {type(like).__name__} is not exchangeable")
    if type(function_in(like)) is not FunctionType:
        return False
    if type(like) is FunctionType:
        # A function is called with the object as its first argument; so must the value be.
        return type(value) is FunctionType or (
            callable(value) and hasattr(type(value), "__get__") and type(value) not in _METHODS
        )
    return type(value) is type(like) and callable(function_in(value))


def of_kind(like: Any, function: FunctionType) -> Any:
    """An attribute of the kind of `like` that holds this function."""
    return function if type(like) is FunctionType else type(like)(function)


def copy_of(function: FunctionType) -> FunctionType:
    """A new function object with the same code and attributes."""
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
