"""Code that can replace a stock function's own code and calls another function.

It has stock's own parameters, file, first line and name, so that signatures, tracebacks and
compilers see the function that they know. What it calls is a global of the function's module under
a private name, because a constant that is no literal is more than ``torch.compile`` can represent.
"""

from __future__ import annotations

import ast
import inspect
import sys
from types import CodeType, FunctionType
from typing import Any

PREFIX = "_sglang_perf_patches_"
"""How the private names begin."""

_NOT_PLAIN = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def trampoline(function: FunctionType, callee: str) -> CodeType:
    """Code for `function` that passes every argument on to the global named `callee`."""
    code = function.__code__
    parameters, arguments = _parameters(code)
    # Python replaces a function's code only by code with as many free variables. Dead code names
    # them, at no cost per call.
    free = ", ".join(code.co_freevars)
    keep = f"  if False: ({free},)\n" if free else ""
    syntax = ast.parse(
        f"def outer({free}):\n def inner({parameters}):\n{keep}  return {callee}({arguments})\n"
    )
    for node in ast.walk(syntax):
        if hasattr(node, "lineno"):
            place: Any = node
            place.lineno = place.end_lineno = code.co_firstlineno
    made = compile(syntax, code.co_filename, "exec", dont_inherit=True)
    for _ in ("outer", "inner"):
        made = next(constant for constant in made.co_consts if isinstance(constant, CodeType))
    named: dict[str, Any] = {"co_name": code.co_name, "co_freevars": code.co_freevars}
    if sys.version_info >= (3, 11):
        named["co_qualname"] = code.co_qualname
    return made.replace(**named)


def require_plain(function: FunctionType) -> None:
    """Refuse a function whose call does not run its code.

    Raises:
        TypeError: it is a coroutine or a generator function.
    """
    if function.__code__.co_flags & _NOT_PLAIN:
        raise TypeError(f"{function.__qualname__} is a coroutine or generator: not exchangeable")


def callee_of(function: FunctionType) -> Any:
    """What a function calls whose code is a trampoline, of this copy or another; else None."""
    for name in function.__code__.co_names[:1]:
        if name.startswith(PREFIX):
            return function.__globals__.get(name)
    return None


def is_running(code: CodeType) -> bool:
    """Whether some thread is executing this code, or something that it called."""
    for innermost in sys._current_frames().values():
        frame = innermost
        while frame is not None:
            if frame.f_code is code:
                return True
            frame = frame.f_back  # type: ignore[assignment]
    return False


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
        named = f"**{rest.pop(0)}"
        parameters.append(named)
        arguments.append(named)
    return ", ".join(parameters), ", ".join(arguments)
