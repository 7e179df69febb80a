"""Changing attributes so that changes compose, come off singly, and leave stock's own objects.

A class's attribute is assigned. A function of a module, which others may have bound by
``from … import``, and a method that other code has wrapped, keep their identity and get another
``__code__`` instead; so nobody's binding goes stale and no wrapper is lost. What is put there is
a *forwarder*, which looks at the dispatch table. A value that is no function can't be one: it is
assigned after the dispatch table has changed.

The dispatch table says what is shown. `Slot.settle` makes memory agree with it, whatever an
interruption has left, and may be repeated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from ..model.patching import MISSING, Make
from .dispatch_table import DispatchTable, at_rest, runs_here
from .trampoline import (
    PREFIX,
    copy_of,
    exchangeable,
    forwarder,
    functions_in,
    is_of_kind,
    of_kind,
    refuses,
    require_plain,
)
from .wrappers import chain, is_function, look_like, raw, wrappers_around

_numbers = itertools.count()


@dataclass(eq=False)
class Layer:
    """What one patch makes of an attribute.

    Attributes:
        patch: its id.
        make: makes the new attribute from what the layers below left.
    """

    patch: str
    make: Make


@dataclass(frozen=True)
class Change:
    """What a slot is to show.

    Attributes:
        slot: where.
        layers: in their order, the one nearest to stock first.
        value: what they made of the original.
    """

    slot: Slot
    layers: tuple[Layer, ...]
    value: Any


class Slot:
    """One attribute that patches of ours share, with stock's object at the bottom.

    Attributes:
        owner: class or module.
        name: the attribute.
        original: what the lowest layer is given: what the owner held before the first change, or
            a copy of the stock function whose code is exchanged.
        inside: that function, where code is exchanged instead of the attribute, else None.
        keys: of the dispatch table; none for a value that is no function.
    """

    def __init__(
        self, dispatch: DispatchTable, owner: Any, name: str, original: Any, inside: Any = None
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
        self._dispatch = dispatch
        self._forwarder: Any = MISSING  # for a class's function
        self._assigned: list[Any] = []  # values of ours that were put there, noted in advance
        self._made: dict[tuple[Layer, ...], Any] = {}
        self._stem = f"{PREFIX}{name}_{next(_numbers)}"
        self._parts: tuple[str, ...] = ()
        self._trampoline: CodeType | None = None
        if inside is not None:
            require_plain(inside)
            self._code: CodeType = inside.__code__
            self.original = copy_of(inside)
            setattr(dispatch.now, self._stem, self.original)  # which nothing calls yet
            self.keys = (self._stem,)
            self._trampoline = exchangeable(inside, self._stem, self._stem)

    def is_for(self, held: Any, inside: Any) -> bool:
        """Whether it was made for what stands in its place now."""
        if inside is not None or self.inside is not None:
            return inside is self.inside and inside.__code__ is self._code
        return held is self.original

    @property
    def shown(self) -> Change:
        """What the dispatch table shows here."""
        change: Change = self._dispatch.now.shown.get(self) or self.made_of(())
        return change

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Those that are shown."""
        return self.shown.layers

    # -- preparing: runs the layers' code, changes nothing that is seen --------------------------

    def made_of(self, layers: Iterable[Layer]) -> Change:
        """What layers make of the original; what they made before is kept until `forget`.

        Raises:
            TypeError: it can't stand in this place.
        """
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
        return Change(self, layers, value)

    def forget(self, patch: str) -> None:
        """Keep nothing that a patch made."""
        self._made = {
            layers: value
            for layers, value in self._made.items()
            if all(layer.patch != patch for layer in layers)
        }

    def functions(self, change: Change) -> dict[str, Callable[..., Any]]:
        """What the dispatch table holds for a change, by key."""
        if not self.keys:
            return {}
        if self.inside is not None:
            return {self._stem: change.value}
        functions = functions_in(self._inherited() if change.value is MISSING else change.value)
        return {
            f"{self._stem}{part}": functions.get(part, refuses(self.name)) for part in self._parts
        }

    def codes(self) -> list[CodeType]:
        """The code of the forwarders here, and of what stood here before."""
        if self._trampoline is not None:
            return [self._trampoline, self._code]
        stock = functions_in(self.original).values()
        return self.forwarder_codes() + [each.__code__ for each in stock if is_function(each)]

    def forwarder_codes(self) -> list[CodeType]:
        """The code of the forwarders here."""
        if self._trampoline is not None:
            return [self._trampoline]
        return [each.__code__ for each in self._forwarders() if is_function(each)]

    def _fit(self, value: Any) -> None:
        """Make the forwarder, the first time, for a value of the kind that stands here."""
        like = value if self.original is MISSING else self.original
        if self._forwarder is not MISSING or self._assigned:
            if bool(self.keys) != is_of_kind(value, like):
                raise TypeError(f"{self.name} was {type(like).__name__}, not a {type(value)}")
            return
        if not is_of_kind(value, like):
            return
        parts = functions_in(value) | functions_in(like)
        try:
            forwarders = {
                part: forwarder(function, self._dispatch, f"{self._stem}{part}")
                for part, function in parts.items()
            }
        except TypeError:
            return
        self._parts = tuple(parts)
        whole = of_kind(like, forwarders)
        look_like(whole, like)
        for part, function in forwarders.items():
            look_like(function, parts[part])
        self.keys = tuple(f"{self._stem}{part}" for part in parts)
        for key, stock in self.functions(self.made_of(())).items():
            setattr(self._dispatch.now, key, stock)
        self._forwarder = whole

    def _inherited(self) -> Any:
        """What an attribute that is not there does: what the next class has."""
        owner, name = self.owner, self.name

        def inherited(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return getattr(super(owner, self), name)(*args, **kwargs)

        return inherited

    # -- showing it ------------------------------------------------------------------------------

    def place(self) -> None:
        """Put the forwarder there; may be repeated."""
        if self._trampoline is not None:
            self.inside.__globals__[self._stem] = self._dispatch
            if self.inside.__code__ is self._code:
                self.inside.__code__ = self._trampoline
        elif self._forwarder is not MISSING:
            self._assign(self._forwarder)

    def show_alone(self, layers: Iterable[Layer]) -> None:
        """Show layers that are of no patch; whoever is in a call may see both."""
        change, now = self.made_of(layers), self._dispatch.now
        self._dispatch.now = now.replaced({self: change}, self.functions(change), now.patches)

    def settle(self, *, is_at_rest: bool = False) -> None:
        """Make memory agree with the dispatch table; may be repeated.

        Args:
            is_at_rest: no thread is in a forwarder here.
        """
        shown = self.shown
        if self._trampoline is not None:
            if shown.layers:
                return
            self._take_out(is_at_rest)
        elif self._forwarder is not MISSING:
            if not shown.layers:
                self._assign(self.original)
        else:
            self._assign(shown.value)

    def stands(self) -> bool:
        """Whether the name leads to something of ours, or to a forwarder."""
        if self._trampoline is not None:
            return self.inside.__code__ is self._trampoline
        held = raw(self.owner, self.name)
        ours = self._forwarders()
        return self._is_ours(held) or any(link is each for link in chain(held) for each in ours)

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
        value = self.shown.value if self._forwarder is MISSING else self._forwarder
        return () if held is value else wrappers_around(held, value)

    def forget_results(self) -> None:
        """Empty the caches around the function, which keep what it returned before."""
        for link in chain(raw(self.owner, self.name)):
            clear = getattr(link, "cache_clear", None)
            if clear is not None:
                clear()

    def _forwarders(self) -> list[Any]:
        """The functions in the forwarder here, for a class's function."""
        return [] if self._forwarder is MISSING else [*functions_in(self._forwarder).values()]

    def _is_ours(self, held: Any) -> bool:
        """Whether what the owner holds is the forwarder, or a value that was put there."""
        ours = (self._forwarder, *self._assigned)
        return held is not MISSING and any(held is each for each in ours)

    def _assign(self, value: Any) -> None:
        held = raw(self.owner, self.name)
        if held is value:
            return
        ours = held is self._forwarder or self._is_ours(held)
        if held is not self.original and not ours:
            return  # other code has replaced it, and may still call the forwarder
        if value is MISSING:
            delattr(self.owner, self.name)
            return
        if value is not self.original and value is not self._forwarder:
            self._assigned.append(value)
        setattr(self.owner, self.name, value)
        set_name = getattr(type(value), "__set_name__", None)
        if set_name is not None and value is not self.original:
            set_name(value, self.owner, self.name)

    def _take_out(self, is_at_rest: bool) -> None:
        function, names = self.inside, self.inside.__globals__
        assert self._trampoline is not None
        if function.__code__ is self._trampoline:
            function.__code__ = self._code
        # A call that has begun may not have read the name yet.
        if is_at_rest:
            names.pop(self._stem, None)
        elif self._stem in names and not runs_here((self._trampoline,)):
            at_rest((self._trampoline,), lambda: names.pop(self._stem, None))
