"""Changing attributes so that changes compose, come off singly, and leave stock's own objects.

One rule: an attribute of a class is assigned. A function of a module, which others may have bound
by ``from … import``, and a method that other code has wrapped, keep their identity and get
another ``__code__`` instead; so nobody's binding goes stale and no wrapper is lost.

What is going to be put somewhere is noted before it is put there, and taking off looks at what is
there: an interruption between two lines loses nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from ..model.patching import MISSING, Make
from .identity import raw
from .trampoline import PREFIX, is_running, require_plain, trampoline
from .wrappers import is_function, look_like, underlying, wrappers_around

_numbers = itertools.count()


@dataclass(frozen=True)
class Layer:
    """What one patch makes of an attribute.

    Attributes:
        order: place of the patch among all; lower ones are nearer to stock.
        patch: its id.
        make: makes the new attribute from what the layers below left.
    """

    order: int
    patch: str
    make: Make


@dataclass(frozen=True)
class Change:
    """What a slot is to show. To make one runs the layers' code, to apply it runs none.

    Attributes:
        slot: where.
        layers: in their order.
        value: what they made of the original.
    """

    slot: Slot
    layers: tuple[Layer, ...]
    value: Any

    def apply(self) -> None:
        """Show it; may be repeated."""
        self.slot._show(self)


class Slot:
    """One attribute that patches of ours share, with stock's object at the bottom.

    Attributes:
        owner: class or module.
        name: the attribute.
        original: what the lowest layer is given: what the owner held before the first change, or
            a copy of the stock function whose code is exchanged.
        inside: that function, where code is exchanged instead of the attribute, else None.
        layers: those that are shown.
        value: what they made of the original.
    """

    def __init__(self, owner: Any, name: str, original: Any, inside: Any = None) -> None:
        """Change nothing yet.

        Raises:
            TypeError: `inside` is a coroutine or a generator, whose code can't be exchanged.
        """
        self.owner = owner
        self.name = name
        self.original = original
        self.inside = inside
        self.layers: tuple[Layer, ...] = ()
        self._placed: list[Any] = []  # everything that we ever put there, noted in advance
        if inside is not None:
            require_plain(inside)
            self._callee = f"{PREFIX}{inside.__name__}_{next(_numbers)}"
            self._code: CodeType = inside.__code__
            self._trampoline = trampoline(inside, self._callee)
            self.original = _copy(inside)
        self.value = self.original

    # -- preparing: runs the layers' code, changes nothing ---------------------------------------

    def with_layers(self, added: Iterable[Layer]) -> Change:
        """With a patch's layers, kept in declared order."""
        return self._made_of(sorted([*self.layers, *added], key=lambda layer: layer.order))

    def without(self, patch: str) -> Change:
        """Without a patch's layers; without any, it is stock's own object again."""
        return self._made_of([layer for layer in self.layers if layer.patch != patch])

    def shown(self) -> Change:
        """As it is now: to come back to."""
        return Change(self, self.layers, self.value)

    def _made_of(self, layers: Iterable[Layer]) -> Change:
        value = self.original
        for layer in layers:
            below, value = value, layer.make(value)
            look_like(value, below)
        return Change(self, tuple(layers), value)

    # -- showing it ------------------------------------------------------------------------------

    def clear(self) -> None:
        """Show stock's own object, whatever was shown or half shown; may be repeated."""
        Change(self, (), self.original).apply()

    def wrappers(self, decorators: int = 0) -> tuple[str, ...] | None:
        """The foreign wrappers around what is shown; None if that is no longer reached.

        Args:
            decorators: how many decorators stock's function has.
        """
        held = raw(self.owner, self.name)
        if self.inside is not None:
            ours = self.inside.__code__ is self._trampoline
            return wrappers_around(held, self.inside, decorators) if ours else None
        if held is self.value:
            return ()
        around = (wrappers_around(held, ours) for ours in reversed(self._placed))
        return next((wrappers for wrappers in around if wrappers is not None), None)

    def _show(self, change: Change) -> None:
        if self.inside is not None:
            self._exchange(change.value if change.layers else None)
        else:
            self._assign(change.value)
        self.layers = change.layers
        self.value = change.value

    def _assign(self, value: Any) -> None:
        held = raw(self.owner, self.name)
        if held is value:
            return
        if held is self.original or any(held is ours for ours in self._placed):
            self._placed.append(value)
            if value is MISSING:
                delattr(self.owner, self.name)
            else:
                setattr(self.owner, self.name, value)
            return
        # Other code has replaced our object and may still call it. So keep the name as it is and
        # let our functions pass calls through.
        for ours in self._placed:
            if ours is not value and ours is not self.original:
                _pass_through(ours, value)

    def _exchange(self, value: Any) -> None:
        function = self.inside
        names = function.__globals__
        if value is not None:
            names[self._callee] = value  # set it before the code that reads it
            function.__code__ = self._trampoline
            return
        if function.__code__ is self._trampoline:
            function.__code__ = self._code
        if function.__code__ is self._code and not is_running(self._trampoline):
            names.pop(self._callee, None)
        elif self._callee in names:
            names[self._callee] = self.original  # running code may still read it


def _pass_through(ours: Any, value: Any) -> None:
    function, target = underlying(ours), underlying(value)
    if is_function(function) and callable(target):
        callee = f"{PREFIX}{function.__name__}_{next(_numbers)}"
        code = trampoline(function, callee)
        function.__globals__[callee] = target
        function.__code__ = code


def _copy(function: FunctionType) -> FunctionType:
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
    copy.__annotations__ = function.__annotations__
    copy.__dict__.update(function.__dict__)
    return copy
