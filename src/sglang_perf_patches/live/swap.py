"""Changing attributes so that several patches can share one, and each can be removed by itself.

There are three ways to change one:

- an attribute of a class is assigned a *forwarder*, which calls what the dispatch table holds;
- a function of a module, or a method that other code has wrapped, keeps its identity and gets the
  forwarder's ``__code__``. So no ``from … import`` goes stale and no wrapper is lost;
- a value that is not a function can't forward. It is assigned after the dispatch table changed.

The dispatch table decides what is shown. `Slot.settle` makes memory agree with it, also after an
interruption. It is idempotent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from operator import delitem, setitem
from types import CodeType
from typing import Any

from ..model.patching import MISSING, Make
from .dispatch_table import Step, at_rest, dispatch, runs_here
from .trampoline import (
    PREFIX,
    copy_of,
    exchangeable,
    forwarder,
    function_in,
    is_of_kind,
    of_kind,
    require_plain,
)
from .wrappers import chain, is_function, look_like, raw, wrappers_around

_numbers = itertools.count()


@dataclass(eq=False)
class Layer:
    """One patch's change of an attribute. Compared by identity.

    Attributes:
        patch: its id; "" for a hook of ours that belongs to no patch.
        make: takes the value of the layers below and returns the new one.
    """

    patch: str
    make: Make


@dataclass(frozen=True)
class Change:
    """What a slot shows.

    Attributes:
        layers: its layers, the one nearest to stock first; none for stock.
        value: what they made of the original.
    """

    layers: tuple[Layer, ...]
    value: Any


class Slot:
    """One attribute of stock's that patches change.

    Creating a slot changes nothing in stock.

    Attributes:
        owner: class or module.
        name: the attribute.
        original: the argument of the lowest layer: what the owner held before the first change
            (`MISSING` if nothing), or a copy of the stock function whose code is exchanged.
        inside: the function whose code is exchanged; None if the attribute is assigned.
        key: its key in the dispatch table; "" for a value that is not a function.

    Raises:
        TypeError: `inside` is a coroutine or a generator, whose code can't be exchanged.
    """

    def __init__(self, owner: Any, name: str, original: Any, inside: Any = None) -> None:
        self.owner = owner
        self.name = name
        self.original = original
        self.inside = inside
        self.key = ""
        self._forwarder: Any = MISSING  # for a class's function
        # Values of ours that were assigned. Each is noted before the assignment, so that after an
        # interruption between the two nothing of ours stands there unrecognised.
        self._assigned: list[Any] = []
        self._made: dict[tuple[Layer, ...], Any] = {}
        self._stem = f"{PREFIX}{name}_{next(_numbers)}"
        self._trampoline: CodeType | None = None
        if inside is not None:
            require_plain(inside)
            self._code: CodeType = inside.__code__
            self.original = copy_of(inside)
            # The table in use may be extended, because no forwarder has this key yet.
            setattr(dispatch.now, self._stem, self.original)
            self.key = self._stem
            self._trampoline = exchangeable(inside, self._stem, self._stem)

    def is_for(self, held: Any, inside: Any) -> bool:
        """Whether this slot was made for the object that the owner holds now."""
        if inside is not None or self.inside is not None:
            return inside is self.inside and inside.__code__ is self._code
        return held is self.original

    @property
    def shown(self) -> Change:
        """The change that the dispatch table holds for this slot."""
        change: Change = dispatch.now.shown.get(self) or self.made_of(())
        return change

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that are shown; none for stock."""
        return self.shown.layers

    # -- preparing: runs the layers' code, changes nothing in stock ------------------------------

    def made_of(self, layers: Iterable[Layer]) -> Change:
        """Compute the value bottom-up; reuse those of an unchanged prefix of layers.

        Raises:
            TypeError: the value is of another kind than the one that stands here.
        """
        # A layer's `make` may import modules. `Registry.made_with` runs it before the exchange, and
        # the result is kept, so that the exchange itself only looks it up.
        layers, value = tuple(layers), self.original
        for number, layer in enumerate(layers, 1):
            key = layers[:number]
            if key not in self._made:
                made = layer.make(value)
                look_like(made, value)
                self._made[key] = made
            value = self._made[key]
        if layers and self.inside is None:
            self._fit(value)
        return Change(layers, value)

    def forget(self, patch: str) -> None:
        """Drop the computed values that a patch has part in."""
        self._made = {
            layers: value
            for layers, value in self._made.items()
            if all(layer.patch != patch for layer in layers)
        }

    def functions(self, change: Change) -> dict[str, Callable[..., Any]]:
        """Key → function, as the dispatch table is to hold it for a change; empty for a value."""
        if not self.key:
            return {}
        value = self._inherited() if change.value is MISSING else change.value
        return {self.key: value if self.inside is not None else function_in(value)}

    def codes(self) -> list[CodeType]:
        """The code of the forwarders here and of stock's functions."""
        if self._trampoline is not None:
            return [self._trampoline, self._code]
        stock = function_in(self.original)
        return self.forwarder_codes() + ([stock.__code__] if is_function(stock) else [])

    def forwarder_codes(self) -> list[CodeType]:
        """The code of the forwarders here."""
        if self._trampoline is not None:
            return [self._trampoline]
        return [] if self._forwarder is MISSING else [function_in(self._forwarder).__code__]

    def _fit(self, value: Any) -> None:
        """Make the forwarder when a slot gets its first value.

        Without one (`key` is "") the values themselves are assigned.

        Raises:
            TypeError: a later value would need the other way, or a forwarder can't stand for it.
        """
        like = value if self.original is MISSING else self.original
        is_function_of_kind = is_of_kind(value, like)
        if self._forwarder is not MISSING or self._assigned:
            if bool(self.key) != is_function_of_kind:
                raise TypeError(f"{self.name} was {type(like).__name__}, not a {type(value)}")
            return
        if not is_function_of_kind:
            return
        function = forwarder(function_in(like), dispatch, self._stem)
        whole = of_kind(like, function)
        look_like(whole, like)
        look_like(function, function_in(like))
        self.key = self._stem
        for key, stock in self.functions(self.made_of(())).items():
            setattr(dispatch.now, key, stock)
        self._forwarder = whole

    def _inherited(self) -> Any:
        """Stands for an attribute that the class itself lacks: calls the next class's."""
        owner, name = self.owner, self.name

        def inherited(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return getattr(super(owner, self), name)(*args, **kwargs)

        return inherited

    # -- showing it ------------------------------------------------------------------------------

    def show_alone(self, layers: Iterable[Layer]) -> None:
        """Show a hook's layers at once, without waiting for calls that are under way."""
        change, now = self.made_of(layers), dispatch.now
        dispatch.now = now.replaced({self: change}, self.functions(change), now.patches)
        self.settle()

    def settle(self) -> None:
        """Make memory agree with the dispatch table. Idempotent.

        While a thread is inside exchanged code, its global stays; the next call tries again.
        """
        change = self.shown
        steps = self.steps(change)
        last = steps.pop() if steps and self._trampoline is not None and not change.layers else None
        for step in steps:
            step.take()
        if last is not None and not runs_here(self.forwarder_codes()):
            at_rest(self.forwarder_codes(), [last])

    def steps(self, change: Change) -> list[Step]:
        """What is left to do until memory shows a change; the removal of a global is the last."""
        if self._trampoline is None:
            ours = change.value if self._forwarder is MISSING else self._forwarder
            return self._assigning(ours if change.layers else self.original)
        function, names, stem = self.inside, self.inside.__globals__, self._stem
        of_global, of_code = partial(names.get, stem), partial(getattr, function, "__code__")
        held, code = of_global(), of_code()
        # A call of the trampoline reads the global, so this comes first and goes last.
        steps = []
        if change.layers and held is not dispatch:
            steps.append(Step(of_global, held, partial(setitem, names, stem, dispatch)))
        if change.layers and code is self._code:
            steps.append(
                Step(of_code, code, partial(setattr, function, "__code__", self._trampoline))
            )
        if not change.layers and code is self._trampoline:
            steps.append(Step(of_code, code, partial(setattr, function, "__code__", self._code)))
        if not change.layers and stem in names:
            steps.append(Step(of_global, held, partial(delitem, names, stem)))
        return steps

    def stands(self) -> bool:
        """Whether the name leads to a forwarder or a value of ours."""
        if self._trampoline is not None:
            return self.inside.__code__ is self._trampoline
        held = raw(self.owner, self.name)
        if self._forwarder is MISSING:
            return self._is_ours(held)
        ours = function_in(self._forwarder)
        return self._is_ours(held) or any(link is ours for link in chain(held))

    def is_left(self) -> bool:
        """Whether `settle` has nothing left to remove."""
        if self._trampoline is not None:
            return not self.stands() and self._stem not in self.inside.__globals__
        return not self._is_ours(raw(self.owner, self.name))

    def wrappers(self, decorators: int = 0) -> tuple[str, ...] | None:
        """The foreign wrappers around what is shown; None if the name no longer leads to it.

        Args:
            decorators: the number of stock's own decorators around the function.
        """
        held = raw(self.owner, self.name)
        if self.inside is not None:
            ours = self.inside.__code__ is self._trampoline
            return wrappers_around(held, self.inside, decorators) if ours else None
        value = self.shown.value if self._forwarder is MISSING else self._forwarder
        return () if held is value else wrappers_around(held, value)

    def forget_results(self) -> None:
        """Clear ``lru_cache``s around the function: they hold what the patched one returned."""
        for link in chain(raw(self.owner, self.name)):
            clear = getattr(link, "cache_clear", None)
            if clear is not None:
                clear()

    def _is_ours(self, held: Any) -> bool:
        ours = (self._forwarder, *self._assigned)
        return held is not MISSING and any(held is each for each in ours)

    def _assigning(self, value: Any) -> list[Step]:
        owner, name = self.owner, self.name
        held = raw(owner, name)
        if held is value or not (held is self.original or self._is_ours(held)):
            return []  # other code has replaced it: its object stays, and may call the forwarder
        read = partial(vars(owner).get, name, MISSING)
        if value is MISSING:
            return [Step(read, held, partial(delattr, owner, name))]
        if value is not self.original and not self._is_ours(value):
            self._assigned.append(value)
            # Python calls this for what a class body defines, but not for what is assigned later.
            set_name = getattr(type(value), "__set_name__", None)
            if set_name is not None:
                set_name(value, owner, name)
        return [Step(read, held, partial(setattr, owner, name, value))]
