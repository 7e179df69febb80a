"""Changing attributes so that changes compose, come off singly, and leave stock's own objects.

One rule: an attribute of a class is assigned. A function of a module, which others may have bound
by ``from … import``, and a method that somebody else has wrapped, keep their identity and get
another ``__code__`` instead; so nobody's binding goes stale and no wrapper is lost.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from ..model.patching import MISSING, Make
from .identity import raw, underlying

_UNDOABLE_FLAGS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass
class Slot:
    """One attribute that patches of ours share, with stock's object at the bottom.

    Attributes:
        owner: class or module.
        name: the attribute.
        original: what the owner held before the first change.
        inside: the stock function whose code is exchanged instead of the attribute, else None.
        layers: ``(order, patch id, make)``, kept in declared order.
        value: what our layers made of the original.
    """

    owner: Any
    name: str
    original: Any
    inside: Any = None
    layers: list[tuple[int, str, Make]] = field(default_factory=list)
    value: Any = MISSING

    def __post_init__(self) -> None:
        """Keep a callable copy of the stock function when its code is going to be exchanged."""
        self.value = self.original
        self._code: CodeType | None = None
        stock: Any = self.inside
        if stock is not None:
            self._code = stock.__code__
            self._signature = inspect.signature(stock)
            self.original = _copy(stock)
            self.value = self.original

    def put(self, order: int, patch: str, make: Make) -> None:
        """Add a patch's layer and show the result."""
        layers = sorted([*self.layers, (order, patch, make)], key=lambda layer: layer[:2])
        self._show(layers)

    def take(self, patch: str) -> None:
        """Remove a patch's layer; with the last one, stock's own object is back."""
        self._show([layer for layer in self.layers if layer[1] != patch])

    def clear(self) -> None:
        """Remove every layer without running any patch's code."""
        self._show([])

    def _show(self, layers: list[tuple[int, str, Make]]) -> None:
        value = self.original
        for _, _, make in layers:
            value = make(value)
        before = self.value
        if self.inside is not None:
            self._exchange(value if layers else None)
        elif raw(self.owner, self.name) is self.value:
            _assign(self.owner, self.name, value)
        elif before is not self.original:
            # Somebody has put something of theirs over ours, and may still call ours: leave the
            # name alone and let our function pass through.
            _pass_through(before, value)
        self.layers = layers
        self.value = value

    def _exchange(self, value: Any) -> None:
        function: Any = self.inside
        if value is None:
            function.__code__ = self._code
            function.__dict__.pop("__signature__", None)
        else:
            function.__code__ = _calling(function, value)
            function.__signature__ = self._signature


def _assign(owner: Any, name: str, value: Any) -> None:
    if value is MISSING:
        if raw(owner, name) is not MISSING:
            delattr(owner, name)
    else:
        setattr(owner, name, value)


def _pass_through(ours: Any, value: Any) -> None:
    function = underlying(ours)
    if isinstance(function, FunctionType) and value is not MISSING:
        function.__code__ = _calling(function, underlying(value))


def _copy(function: FunctionType) -> FunctionType:
    """The same function under another identity."""
    if function.__code__.co_flags & _UNDOABLE_FLAGS:
        raise TypeError(f"{function.__qualname__} is a coroutine or generator: not exchangeable")
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
    copy.__dict__.update(function.__dict__)
    return copy


def _calling(function: FunctionType, callee: Callable[..., Any]) -> CodeType:
    """Code for `function` that passes every argument on to `callee`.

    A function's code can be exchanged only for one with as many free variables, and the callee
    must not be looked up in sglang's globals: it travels as a constant of the code.
    """
    free = function.__code__.co_freevars
    names = ", ".join(free)
    source = (
        f"def outer({names}):\n"
        "    def inner(*args, **kwargs):\n"
        f"        {f'({names},)' if free else 'pass'}\n"
        "        callee = 'callee'\n"
        "        return callee(*args, **kwargs)\n"
        "    return inner\n"
    )
    scope: dict[str, Any] = {}
    exec(compile(source, __file__, "exec", dont_inherit=True), scope)  # noqa: S102
    code: CodeType = scope["outer"](*free).__code__
    constants = tuple(callee if constant == "callee" else constant for constant in code.co_consts)
    return code.replace(co_consts=constants, co_name=function.__code__.co_name, co_freevars=free)
