"""Changing attributes so that changes compose, come off singly, and leave stock's own objects.

A class's attribute is assigned. A function of a module, which others may have bound by
``from … import``, and a method that other code has wrapped, keep their identity and get another
``__code__`` instead; so nobody's binding goes stale and no wrapper is lost. What is put there is
inert, and looks at the board (see `board`). A value that is no function can't be inert: it is
assigned after the board has changed.

The board says what is shown. `Slot.settle` makes memory agree with it, whatever an interruption
has left, and may be repeated.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from ..model.patching import MISSING, Make
from . import stacks
from .board import Board
from .identity import raw
from .trampoline import PREFIX, exchangeable, front, require_plain
from .wrappers import chain, is_function, look_like, wrappers_around

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
    """What a slot is to show. To make one runs the layers' code.

    Attributes:
        slot: where.
        layers: in their order.
        values: what each made of the one below it.
    """

    slot: Slot
    layers: tuple[Layer, ...] = ()
    values: tuple[Any, ...] = ()

    @property
    def value(self) -> Any:
        """What they made of the original."""
        return self.values[-1] if self.values else self.slot.original


class Slot:
    """One attribute that patches of ours share, with stock's object at the bottom.

    Attributes:
        owner: class or module.
        name: the attribute.
        original: what the lowest layer is given: what the owner held before the first change, or
            a copy of the stock function whose code is exchanged.
        inside: that function, where code is exchanged instead of the attribute, else None.
        keys: of the board's table; none for a value that is no function.
    """

    def __init__(
        self, board: Board, owner: Any, name: str, original: Any, inside: Any = None
    ) -> None:
        """Change nothing yet.

        Raises:
            TypeError: `inside` is a coroutine or a generator, whose code can't be exchanged.
        """
        self.owner = owner
        self.name = name
        self.original = original
        self.inside = inside
        self.keys: tuple[str, ...] = ()
        self._board = board
        self._front: Any = MISSING  # what is inert, for a class's function
        self._assigned: list[Any] = []  # values of ours that were put there, noted in advance
        self._stem = f"{PREFIX}{name}_{next(_numbers)}"
        self._parts: tuple[str, ...] = ()
        self._trampoline: CodeType | None = None
        if inside is not None:
            require_plain(inside)
            self._code: CodeType = inside.__code__
            self.original = _copy(inside)
            board.add(self._stem, self.original)
            self.keys = (self._stem,)
            self._trampoline = exchangeable(inside, self._stem, self._stem)

    def is_for(self, held: Any, inside: Any) -> bool:
        """Whether it was made for what stands in its place now."""
        if inside is not None or self.inside is not None:
            return inside is self.inside and inside.__code__ is self._code
        return held is self.original

    @property
    def shown(self) -> Change:
        """What the board shows here."""
        change: Change = self._board.table.shown.get(self) or Change(self)
        return change

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Those that are shown."""
        return self.shown.layers

    # -- preparing: runs the layers' code, changes nothing that is seen --------------------------

    def with_layers(self, added: Iterable[Layer]) -> Change:
        """With a patch's layers, kept in declared order.

        Raises:
            TypeError: what a layer made can't stand in this place.
        """
        return self.made_of(sorted([*self.layers, *added], key=lambda layer: layer.order))

    def without(self, patches: frozenset[str]) -> Change:
        """Without some patches' layers; without any, it is stock's own object."""
        return self.made_of([layer for layer in self.layers if layer.patch not in patches])

    def functions(self, change: Change) -> dict[str, Callable[..., Any]]:
        """What the board's table holds for a change, by key."""
        if not self.keys:
            return {}
        if self.inside is not None:
            return {self._stem: change.value}
        functions = _functions(self._inherited() if change.value is MISSING else change.value)
        return {
            f"{self._stem}{part}": functions.get(part, _refuses(self.name)) for part in self._parts
        }

    def codes(self) -> list[CodeType]:
        """The code of what is inert here, and of what stood here before."""
        if self._trampoline is not None:
            return [self._trampoline, self._code]
        stock = _functions(self.original).values()
        return self.inert_codes() + [each.__code__ for each in stock if is_function(each)]

    def inert_codes(self) -> list[CodeType]:
        """The code of what is inert here."""
        if self._trampoline is not None:
            return [self._trampoline]
        return [each.__code__ for each in self._inert() if is_function(each)]

    def made_of(self, layers: Iterable[Layer]) -> Change:
        """The layers' values; those of the same layers on the same ground are kept."""
        shown = self.shown
        layers, values = tuple(layers), []
        value, is_same = self.original, True
        for number, layer in enumerate(layers):
            is_same = is_same and shown.layers[number : number + 1] == (layer,)
            if is_same:
                value = shown.values[number]
            else:
                below, value = value, layer.make(value)
                look_like(value, below)
            values.append(value)
        change = Change(self, layers, tuple(values))
        if layers and self.inside is None:
            self._fit(change.value)
        return change

    def _fit(self, value: Any) -> None:
        """Make what is inert, the first time, for a value of the kind that stands here."""
        like = value if self.original is MISSING else self.original
        if self._front is not MISSING or self._assigned:
            if bool(self.keys) != _is_of_kind(value, like):
                raise TypeError(f"{self.name} was {type(like).__name__}, not a {type(value)}")
            return
        if not _is_of_kind(value, like):
            return
        parts = _functions(value) | _functions(like)
        try:
            fronts = {
                part: front(function, self._board, f"{self._stem}{part}")
                for part, function in parts.items()
            }
        except TypeError:
            return
        self._parts = tuple(parts)
        inert = _of_kind(like, fronts)
        look_like(inert, like)
        for part, function in fronts.items():
            look_like(function, parts[part])
        self.keys = tuple(f"{self._stem}{part}" for part in parts)
        for key, stock in self.functions(Change(self)).items():
            self._board.add(key, stock)
        self._front = inert

    def _inherited(self) -> Any:
        """What an attribute that is not there does: what the next class has."""
        owner, name = self.owner, self.name

        def inherited(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return getattr(super(owner, self), name)(*args, **kwargs)

        return inherited

    # -- showing it ------------------------------------------------------------------------------

    def place(self) -> None:
        """Put there what is inert; may be repeated."""
        if self._trampoline is not None:
            self.inside.__globals__[self._stem] = self._board
            self.inside.__code__ = self._trampoline
        elif self._front is not MISSING:
            self._assign(self._front)

    def show_alone(self, change: Change) -> None:
        """Have the board show a change that is of no patch; whoever is in a call may see both."""
        table = self._board.table.replaced({self: change}, self._board.table.patches)
        table.__dict__.update(self.functions(change))
        self._board.now = table

    def settle(self) -> None:
        """Make memory agree with the board; may be repeated."""
        shown = self.shown
        if self._trampoline is not None:
            if shown.layers:
                return
            self._take_out()
        elif self._front is not MISSING:
            if not shown.layers:
                self._assign(self.original)
        else:
            self._assign(shown.value)

    def stands(self) -> bool:
        """Whether the name leads to something of ours, shown or inert."""
        if self._trampoline is not None:
            return self.inside.__code__ is self._trampoline
        held = raw(self.owner, self.name)
        inert = self._inert()
        return self._is_ours(held) or any(link is each for link in chain(held) for each in inert)

    def is_left(self) -> bool:
        """Whether there is nothing of ours that `settle` could take away."""
        if self._trampoline is not None:
            return not self.stands() and self._stem not in self.inside.__globals__
        return not self._is_ours(raw(self.owner, self.name))

    def wrappers(self, decorators: int = 0) -> tuple[str, ...] | None:
        """The foreign wrappers around what is shown; None if that is no longer reached.

        Args:
            decorators: how many decorators stock's function has.
        """
        held = raw(self.owner, self.name)
        if self.inside is not None:
            ours = self.inside.__code__ is self._trampoline
            return wrappers_around(held, self.inside, decorators) if ours else None
        value = self.shown.value if self._front is MISSING else self._front
        return () if held is value else wrappers_around(held, value)

    def forget_results(self) -> None:
        """Empty the caches around the function, which keep what it returned before."""
        for link in chain(raw(self.owner, self.name)):
            clear = getattr(link, "cache_clear", None)
            if clear is not None:
                clear()

    def _inert(self) -> list[Any]:
        """The functions in what is inert here, for a class's function."""
        return [] if self._front is MISSING else [*_functions(self._front).values()]

    def _is_ours(self, held: Any) -> bool:
        """Whether what the owner holds is inert, or a value that was put there."""
        ours = (self._front, *self._assigned)
        return held is not MISSING and any(held is each for each in ours)

    def _assign(self, value: Any) -> None:
        held = raw(self.owner, self.name)
        if held is value:
            return
        ours = held is self._front or self._is_ours(held)
        if held is not self.original and not ours:
            return  # other code has replaced it, and may still call what is inert
        if value is MISSING:
            delattr(self.owner, self.name)
            return
        if value is not self.original and value is not self._front:
            self._assigned.append(value)
        setattr(self.owner, self.name, value)
        set_name = getattr(type(value), "__set_name__", None)
        if set_name is not None and value is not self.original:
            set_name(value, self.owner, self.name)

    def _take_out(self) -> None:
        function, names = self.inside, self.inside.__globals__
        assert self._trampoline is not None
        if function.__code__ is self._trampoline:
            function.__code__ = self._code
        # A call that has begun may not have read the name yet.
        if self._stem in names and not (
            stacks.runs_here((self._trampoline,)) or stacks.runs_elsewhere((self._trampoline,))
        ):
            names.pop(self._stem, None)


def _functions(value: Any) -> dict[str, Any]:
    """The functions in an attribute, by their part in it."""
    if type(value) is property:
        parts = {"_get": value.fget, "_set": value.fset, "_delete": value.fdel}
        return {part: function for part, function in parts.items() if function is not None}
    if type(value) in (staticmethod, classmethod):
        return {"": value.__func__}
    if type(value) is functools.cached_property:
        return {"": value.func}
    return {"": value}


def _is_of_kind(value: Any, like: Any) -> bool:
    """Whether one inert attribute can stand for both."""
    if not all(is_function(function) for function in _functions(like).values()):
        return False
    if is_function(like):
        # What is called with its object as the first argument.
        return is_function(value) or (
            callable(value) and hasattr(type(value), "__get__") and type(value) not in _DESCRIPTORS
        )
    return type(value) is type(like) and all(map(callable, _functions(value).values()))


_DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property)


def _of_kind(like: Any, fronts: dict[str, Any]) -> Any:
    if type(like) is property:
        get, put, delete = (fronts.get(part) for part in ("_get", "_set", "_delete"))
        return property(get, put, delete, like.__doc__)
    return fronts[""] if is_function(like) else type(like)(fronts[""])


def _refuses(name: str) -> Callable[..., Any]:
    def refuses(*_: Any) -> Any:
        raise AttributeError(name)

    return refuses


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
    if sys.version_info >= (3, 14):  # where to read the annotations evaluates them
        copy.__annotate__ = function.__annotate__
    else:
        copy.__annotations__ = function.__annotations__
    copy.__dict__.update(function.__dict__)
    return copy
