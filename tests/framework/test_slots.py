"""Layers that stack and come off, in functions that stay the same and on attributes."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from sglang_perf_patches.live import switch
from sglang_perf_patches.live.switch import Attribute, callee_of, place_in
from sglang_perf_patches.model.patching import MISSING


def adding(amount: int) -> Callable[[Any], Any]:
    return lambda inner: lambda *args, **kwargs: inner(*args, **kwargs) + amount


def show(place: Any, *layers: Callable[[Any], Any]) -> None:
    assert switch.exchange({place: layers})


def sample() -> Any:
    class Base:
        def step(self, x: int, *, y: int = 0) -> int:
            return x + y

    class Owner(Base):
        def step(self, x: int, *, y: int = 0) -> int:
            return super().step(x, y=y) + 1

    return Owner


class Named:
    """What wants to know where it is."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.place = (owner, name)


def test_what_is_put_in_a_class_learns_its_name_as_in_a_class_statement() -> None:
    owner, value = sample(), Named()
    place = Attribute(owner, "extra")
    show(place, lambda inner: value if inner is MISSING else None)
    assert owner.extra is value
    assert value.place == (owner, "extra")
    assert switch.raw(owner, "extra") is place.value
    show(place)
    assert "extra" not in owner.__dict__


def test_what_stands_there_leads_to_what_is_shown() -> None:
    """For whoever follows wrappers, another copy of this package among them."""
    owner = sample()
    place = place_in(owner.__dict__["step"])
    show(place, adding(10))
    shown = callee_of(owner.__dict__["step"])
    assert shown is not None
    assert shown.__code__.co_filename == __file__
    assert shown(owner(), 1) == 12
    show(place)
    assert callee_of(owner.__dict__["step"]) is None


@pytest.mark.parametrize("arguments", [((1,), {}), ((1,), {"y": 5})])
def test_inside_a_function_that_closes_over_its_class(arguments: Any) -> None:
    owner = sample()
    stock, names = owner.__dict__["step"], set(globals())
    code, signature = stock.__code__, inspect.signature(stock)
    args, kwargs = arguments
    before = owner().step(*args, **kwargs)
    place, one, two = place_in(stock), adding(100), adding(1000)
    show(place, one, two)
    assert owner.__dict__["step"] is stock
    assert owner().step(*args, **kwargs) == before + 1100
    assert inspect.signature(stock) == signature
    show(place, one)
    assert owner().step(*args, **kwargs) == before + 100
    show(place)
    assert stock.__code__ is code
    assert stock.__dict__ == {}
    assert set(globals()) == names
    assert owner().step(*args, **kwargs) == before


def test_a_step_that_fails_is_rolled_back_with_those_before_it() -> None:
    class Refusing(type):
        def __setattr__(cls, name: str, value: object) -> None:
            raise ZeroDivisionError

    owner, refusing = sample(), Refusing("Other", (), {})
    stock, names, now = owner.__dict__["step"], set(globals()), switch.board.now
    code, place, other = stock.__code__, place_in(stock), Attribute(refusing, "extra")
    with pytest.raises(ZeroDivisionError):
        switch.exchange({place: [adding(1)], other: [lambda _: 1]})
    assert stock.__code__ is code
    assert set(globals()) == names
    assert switch.board.now is now
    assert owner().step(1) == 2
