"""Changes that stack and come off, on attributes and inside functions that stay the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from sglang_perf_patches.live.dispatch_table import dispatch
from sglang_perf_patches.live.swap import Layer, Slot
from sglang_perf_patches.live.trampoline import callee_of
from sglang_perf_patches.model.patching import MISSING


def adding(amount: int) -> Callable[[Any], Any]:
    return lambda inner: lambda *args, **kwargs: inner(*args, **kwargs) + amount


def put(slot: Slot, order: int, patch: str, make: Callable[[Any], Any]) -> None:
    layers = [*slot.layers]
    layers.insert(order, Layer(patch, make))
    show(slot, layers)


def take(slot: Slot, patch: str) -> None:
    show(slot, [layer for layer in slot.layers if layer.patch != patch])


def show(slot: Slot, layers: list[Layer]) -> None:
    change = slot.made_of(layers)
    table = dispatch.now.replaced({slot: change}, slot.functions(change), frozenset())
    dispatch.now = table
    slot.settle()


def sample() -> Any:
    class Base:
        def step(self, x: int, *, y: int = 0) -> int:
            return x + y

    class Owner(Base):
        def step(self, x: int, *, y: int = 0) -> int:
            return super().step(x, y=y) + 1

    return Owner


def test_an_attribute_that_was_not_there() -> None:
    owner = sample()
    slot = Slot(owner, "extra", MISSING)
    put(slot, 0, "a", lambda inner: "ours" if inner is MISSING else inner)
    assert owner.extra == "ours"
    assert not slot.is_left()
    take(slot, "a")
    assert "extra" not in owner.__dict__
    assert slot.is_left()


class Named:
    """What wants to know where it is."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.place = (owner, name)


def test_what_is_put_in_a_class_learns_its_name_as_in_a_class_statement() -> None:
    owner, value = sample(), Named()
    slot = Slot(owner, "extra", MISSING)
    put(slot, 0, "a", lambda _: value)
    assert value.place == (owner, "extra")


@pytest.mark.parametrize("inside", [False, True])
def test_what_stands_there_leads_to_what_is_shown(inside: bool) -> None:
    """For whoever follows wrappers, another copy of this package among them."""
    owner = sample()
    stock = owner.__dict__["step"]
    slot = Slot(owner, "step", stock, stock if inside else None)
    put(slot, 0, "a", adding(10))
    shown = callee_of(owner.__dict__["step"])
    assert shown is not None
    assert shown.__code__.co_filename == __file__
    assert shown(owner(), 1) == 12
    take(slot, "a")
    assert callee_of(owner.__dict__["step"]) is None


@pytest.mark.parametrize("arguments", [((1,), {}), ((1,), {"y": 5})])
def test_inside_a_function_that_closes_over_its_class(arguments: Any) -> None:
    owner = sample()
    stock = owner.__dict__["step"]
    code, signature = stock.__code__, inspect.signature(stock)
    args, kwargs = arguments
    before = owner().step(*args, **kwargs)
    slot = Slot(owner, "step", stock, inside=stock)
    put(slot, 0, "a", adding(100))
    put(slot, 1, "b", adding(1000))
    assert owner.__dict__["step"] is stock
    assert owner().step(*args, **kwargs) == before + 1100
    assert inspect.signature(stock) == signature
    take(slot, "b")
    assert owner().step(*args, **kwargs) == before + 100
    take(slot, "a")
    assert stock.__code__ is code
    assert stock.__dict__ == {}
    assert owner().step(*args, **kwargs) == before


def test_taken_off_below_a_wrapper_that_keeps_ours() -> None:
    owner = sample()
    slot = Slot(owner, "step", owner.__dict__["step"])
    put(slot, 0, "a", adding(100))
    ours = owner.__dict__["step"]
    owner.step = lambda self, x: -ours(self, x)
    take(slot, "a")
    assert owner().step(1) == -(1 + 1)
