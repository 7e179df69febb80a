"""Puts our code into stock's functions and takes it out again, all places of a patch at once.

A function of stock's keeps its identity and gets a *trampoline* as its ``__code__``: so no
``from … import`` goes stale, no wrapper of another plugin is lost, and ``super()`` works. The
trampoline calls what a private global of the function's module holds. Anything else is an
attribute, which is set and put back.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import delitem, setitem
from types import CellType, CodeType, FunctionType
from typing import Any

from ..model.patching import MISSING, Make
from .threads import Step, at_rest, runs_here

PREFIX = "_sglang_perf_patches_"  # of the private globals
_NOT_PLAIN = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_PASSED: dict[Any, str] = {  # how a trampoline passes on what is not positional
    inspect.Parameter.VAR_POSITIONAL: "*{0}",
    inspect.Parameter.KEYWORD_ONLY: "{0}={0}",
    inspect.Parameter.VAR_KEYWORD: "**{0}",
}
_places: dict[Any, Any] = {}  # every place that was ever used


class Board:
    """Holds what is shown `now`; exchanged in the same call into C as memory."""

    now: Mapping[Any, tuple[Make, ...]] = {}  # place → its layers, where it has any


board = Board()


class Place:
    """What several patches may change, each in a layer of its own; the lowest gets `stock`."""

    def __init__(self, name: str, stock: Any) -> None:
        self.name = name
        self.stock = stock
        self._made: dict[tuple[Make, ...], Any] = {(): stock}

    @property
    def value(self) -> Any:
        """What is shown here."""
        return self._made[board.now.get(self, ())]

    def made(self, layers: Sequence[Make]) -> Any:
        """What the layers make of stock's value, the one nearest to stock first.

        Results are kept: what shows again is the same object. This raises TypeError if the value
        can't stand here.
        """
        key: tuple[Make, ...] = ()
        for layer in layers:
            below, key = key, (*key, layer)
            if key not in self._made:
                self._made[key] = self._fit(layer(self._made[below]))
        return self._made[key]

    def forget(self, layer: Make) -> None:
        """Drop what a layer has part in."""
        self._made = {key: value for key, value in self._made.items() if layer not in key}

    def _fit(self, value: Any) -> Any:
        return value


class Function(Place):
    """A function of stock's, whose code is exchanged; `stock` is a copy that keeps stock's code.

    It raises TypeError if the body does not run during the call.
    """

    def __init__(self, function: FunctionType) -> None:
        if function.__code__.co_flags & _NOT_PLAIN:
            what = "is a coroutine or generator: not exchangeable"
            raise TypeError(f"{function.__qualname__} {what}")
        super().__init__(f"{PREFIX}{function.__name__}_{id(function):x}", copy_of(function))
        self.function = function
        self.code = function.__code__
        self.trampoline = trampoline(self.code, self.name)

    def stands(self) -> bool:
        """Whether the function has our code."""
        return self.function.__code__ is self.trampoline

    def codes(self, *, is_coming: bool) -> list[CodeType]:
        """What a thread inside it executes; stock's code counts only until the first change."""
        return [self.trampoline, self.code] if is_coming else [self.trampoline]

    def steps(self, value: Any) -> Iterator[Step]:
        """What is left to do until memory shows a value."""
        function, names = self.function, self.function.__globals__
        code, held = function.__code__, names.get(self.name, MISSING)
        of_code = partial(getattr, function, "__code__"), code
        of_name = partial(names.get, self.name, MISSING), held
        if value is self.stock:
            if code is self.trampoline:
                yield *of_code, partial(setattr, function, "__code__", self.code)
            if held is not MISSING:
                yield *of_name, partial(delitem, names, self.name)
            return
        if held is not value:
            yield *of_name, partial(setitem, names, self.name, value)
        if code is self.code:
            yield *of_code, partial(setattr, function, "__code__", self.trampoline)

    def _fit(self, value: Any) -> Any:
        value = function_in(value)
        if not callable(value):
            raise TypeError(f"{self.function.__qualname__} was a function, not {type(value)}")
        return value


class Attribute(Place):
    """An attribute that stock lacks (`stock` is `MISSING`), or whose value is no function."""

    def __init__(self, owner: Any, name: str) -> None:
        super().__init__(name, raw(owner, name))
        self.owner = owner

    def codes(self, *, is_coming: bool) -> list[CodeType]:
        """See `Function.codes`."""
        function = function_in(self.value)
        return [] if is_coming or type(function) is not FunctionType else [function.__code__]

    def steps(self, value: Any) -> Iterator[Step]:
        """See `Function.steps`."""
        owner, name = self.owner, self.name
        held = raw(owner, name)
        if held is value or not (held is self.stock or held is self.value):
            return  # other code has replaced it: its object stays
        act = partial(setattr, owner, name, value)
        if value is MISSING:
            act = partial(delattr, owner, name)
        yield partial(vars(owner).get, name, MISSING), held, act

    def _fit(self, value: Any) -> Any:
        # Python calls this for what a class body defines, but not for what is assigned later.
        set_name = getattr(type(value), "__set_name__", None)
        if set_name is not None and isinstance(self.owner, type):
            set_name(value, self.owner, self.name)
        return value


def place_in(function: FunctionType) -> Function:
    """The place of a function; the same one as long as nobody else exchanges its code."""
    place: Function | None = _places.get(id(function))
    if place is None or not (place.stands() or function.__code__ is place.code):
        place = _places[id(function)] = Function(function)
    return place


def place_at(owner: Any, name: str) -> Attribute:
    """The place of an attribute; the same one as long as its owner holds stock's value or ours."""
    place: Attribute | None = _places.get((id(owner), name))
    if place is None or not (place in board.now or raw(owner, name) is place.stock):
        place = _places[id(owner), name] = Attribute(owner, name)
    return place


def shown_at(owner: Any, name: str) -> Attribute | None:
    """The place of an attribute that shows something of ours, else None."""
    place = _places.get((id(owner), name))
    return place if place in board.now else None


def stock_code(function: FunctionType) -> CodeType:
    """The code of a function, below ours."""
    place = _places.get(id(function))
    return place.code if place is not None and place.stands() else function.__code__


def exchange(
    changes: Mapping[Any, Sequence[Make]], is_idle: Callable[[], bool] | None = None
) -> bool:
    """Show all of a change at once, if no thread is inside what changes; else return False.

    It raises what the making of a function raises. If a step fails, it rolls back and raises.

    Args:
        changes: place → its new layers, the one nearest to stock first.
        is_idle: see `at_rest`.
    """
    # First: to make a function may import, which must not happen during the exchange.
    values = {place: place.made(layers) for place, layers in changes.items()}
    before = board.now
    now = {**before, **{place: tuple(layers) for place, layers in changes.items()}}
    now = {place: layers for place, layers in now.items() if layers}
    # The caller may be inside stock's code, which it ends with. Inside ours, it would see a half.
    if runs_here([code for place in changes for code in place.codes(is_coming=False)]):
        return False
    codes = [code for place in changes for code in place.codes(is_coming=place not in before)]
    steps = [step for place, value in values.items() for step in place.steps(value)]
    steps.append((partial(getattr, board, "now"), before, partial(setattr, board, "now", now)))
    try:
        return at_rest(codes, steps, is_idle)
    except BaseException:
        if board.now is before:  # a step failed, or an interruption came before the first
            at_rest((), [step for place in changes for step in place.steps(place.value)])
        raise


def trampoline(code: CodeType, callee: str) -> CodeType:
    """Code that passes every argument of `code` on to the global `callee`.

    It has stock's parameters, file, first line and name, so that signatures, tracebacks and
    compilers see the function that they know.
    """
    empty = tuple(CellType() for _ in code.co_freevars)
    signature = inspect.signature(FunctionType(code, {}, closure=empty))
    arguments = ", ".join(
        _PASSED.get(each.kind, "{0}").format(each.name) for each in signature.parameters.values()
    )
    # Python requires new code to have as many free variables as the old. Dead code mentions them,
    # which costs nothing per call.
    free = ", ".join(code.co_freevars)
    keep = f"  if False: ({free},)\n" if free else ""
    syntax = ast.parse(
        f"def outer({free}):\n def inner{signature}:\n{keep}  return {callee}({arguments})\n"
    )
    for node in ast.walk(syntax):
        if hasattr(node, "lineno"):
            vars(node).update(lineno=code.co_firstlineno, end_lineno=code.co_firstlineno)
    inner = compile(syntax, code.co_filename, "exec", dont_inherit=True)
    for _ in ("outer", "inner"):
        inner = next(constant for constant in inner.co_consts if isinstance(constant, CodeType))
    names: dict[str, Any] = {"co_name": code.co_name, "co_freevars": code.co_freevars}
    if sys.version_info >= (3, 11):
        names["co_qualname"] = code.co_qualname
    return inner.replace(**names)


def callee_of(function: FunctionType) -> Any:
    """What a trampoline calls now, also one of another copy of this project; else None."""
    names = (name for name in function.__code__.co_names if name.startswith(PREFIX))
    return function.__globals__.get(next(names, ""))


def function_in(value: Any) -> Any:
    """The function in a static or class method; else the value itself."""
    return value.__func__ if type(value) in (staticmethod, classmethod) else value


def raw(owner: Any, name: str) -> Any:
    """The attribute in the owner's own ``__dict__``; `MISSING` if it has none."""
    return vars(owner).get(name, MISSING)


def copy_of(function: FunctionType) -> FunctionType:
    """A new function object with the same code and attributes."""
    parts = function.__code__, function.__globals__, function.__name__
    copy = FunctionType(*parts, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(copy, function)
    copy.__dict__ = dict(function.__dict__)  # without the `__wrapped__` that this has set
    return copy
