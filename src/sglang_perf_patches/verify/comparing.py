"""Running the same inputs on stock sglang and with a patch live, and comparing the results."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, TypeVar

import sglang_perf_patches

from ..compat import source
from ..live import engine
from ..live.executor import executor
from ..model.state import Report
from . import Different, Inputs, Missing

T = TypeVar("T")
R = TypeVar("R")


@cache
def installed() -> source.Tree:
    """The installed sglang, read once for all the times that a patch goes live."""
    return source.installed()


@contextmanager
def live(*patches: str, beside: Sequence[str] = (), ran: bool | None = True) -> Iterator[None]:
    """Keep patches live together in this process, and stock back afterwards.

    Further ones, `beside`, may be gated here. `ran` is whether code of any of the others must have
    run by then, or must not have; None for either.

    Raises:
        Different: one did not go live, `ran` does not hold, or a patch of an earlier play is still
            on though its objects are gone.
        Missing: a patch supports other machines only.
    """
    _require_stock()
    selection = ",".join((*patches, *beside))
    try:
        report = executor.do(partial(engine.activate_now, selection, tree=installed()))
        for patch in (*patches, *beside):
            state = report.of(patch)
            if state.state == "gated" and patch not in beside:
                raise Missing(f"gated here: {state.reason}")
            if state.state not in {"live", "gated"}:
                raise Different(f"{patch} is {state.state}: {state.reason}")
        yield
        seen = sglang_perf_patches.activate(selection)
        is_right = ran in {None, any(seen.of(patch).ran for patch in patches)}
        require(is_right, f"{selection} {'never ran' if ran else 'ran'}")
    finally:
        _off()


def _off() -> Report | None:
    """Remove all patches, also those that waited for objects; returns what stays on."""
    sglang_perf_patches.deactivate()
    if engine.report() is not None:
        gc.collect()
        sglang_perf_patches.deactivate()
    return engine.report()


def _require_stock() -> None:
    if left := _off():
        live = (f"{each.id}: {each.reason}" for each in left.patches if each.state == "live")
        raise Different(f"on after deactivate(): {'; '.join(live)}")


def same(
    patch: str,
    run: Callable[[T], Any],
    inputs: Sequence[T],
    *,
    ran: bool | None = True,
    stock: Callable[[T], Any] | None = None,
) -> int:
    """Run every input on stock and then with the patch, and return how many were compared.

    `run` gives the result of one input: tensors, numbers, strings, and containers of these. `stock`
    gives stock's, if `run` need not do that again. For `ran` see `live`.

    Raises:
        Different: two results differ in a bit, in shape, dtype or type; or as `both`.
    """
    for value, expected, actual in both((patch,), run, inputs, ran=ran, stock=stock):
        require_same(f"{patch}, {value!r}", expected, actual)
    return len(inputs)


def both(
    patches: Sequence[str],
    run: Callable[[T], R],
    inputs: Sequence[T],
    *,
    ran: bool | None = True,
    stock: Callable[[T], R] | None = None,
) -> list[tuple[T, R, R]]:
    """Run every input on stock and then with patches: each input with stock's and their result.

    Raises as `live`, and if there is no input.
    """
    require(inputs, f"{', '.join(patches)}: no input was made")
    _require_stock()
    expected = [(stock or run)(value) for value in inputs]
    with live(*patches, ran=ran):
        actual = [run(value) for value in inputs]
    return list(zip(inputs, expected, actual, strict=True))


def some(inputs: Inputs, scenarios: Sequence[T]) -> list[T]:
    """The first of a case's own scenarios: all, or fewer where `inputs` draws fewer than asked."""
    count = len(inputs(lambda random: random.random(), len(scenarios))) if scenarios else 0
    return list(scenarios[:count])


def require_same(what: str, expected: Any, actual: Any) -> None:
    """Raise `Different`, with what it is of, unless two results are equal; see `differs`."""
    difference = differs(expected, actual)
    require(difference is None, f"{what}: {difference}")


def require(holds: object, otherwise: str) -> None:
    """Raise `Different` with a text unless something holds."""
    if not holds:
        raise Different(otherwise)


def differs(expected: Any, actual: Any, where: str = "result") -> str | None:
    """Where two results differ, bit by bit; None if they don't."""
    if type(expected) is not type(actual):
        return f"{where} is {type(actual).__name__}, not {type(expected).__name__}"
    if hasattr(expected, "data_ptr"):
        return _tensors_differ(expected, actual, where)
    if isinstance(expected, dict):
        if expected.keys() != actual.keys():
            return f"{where} has {sorted(actual)}, not {sorted(expected)}"
        pairs = [(f"{where}[{key!r}]", expected[key], actual[key]) for key in expected]
    elif isinstance(expected, list | tuple):
        if len(expected) != len(actual):
            return f"{where} has {len(actual)} items, not {len(expected)}"
        items = zip(expected, actual, strict=True)
        pairs = [(f"{where}[{i}]", *pair) for i, pair in enumerate(items)]
    else:
        return None if expected == actual else f"{where} is {actual!r}, not {expected!r}"
    found = (differs(one, other, name) for name, one, other in pairs)
    return next(filter(None, found), None)


def _tensors_differ(expected: Any, actual: Any, where: str) -> str | None:
    import torch

    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        kinds = [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (actual, expected)]
        return f"{where} is {kinds[0]}, not {kinds[1]}"
    one, other = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in (expected, actual))
    if torch.equal(one, other):
        return None
    width = expected.element_size()
    wrong = (one != other).view(-1, width).any(1).nonzero().view(-1)
    at = int(wrong[0])
    values = [tensor.contiguous().view(-1)[at].item() for tensor in (actual, expected)]
    return (
        f"{where}, of shape {tuple(expected.shape)}, differs in {wrong.numel()} values: "
        f"the first, at {at} counted flat, is {values[0]}, not {values[1]}"
    )
