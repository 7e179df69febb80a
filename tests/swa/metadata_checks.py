"""Checks of ``swa.window-metadata`` on one release, over its Triton attention backend and pools."""

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from unittest import mock

import torch

from prove import drawn
from sglang_perf_patches.live import engine
from sglang_perf_patches.sets.swa import window_metadata as body
from sglang_perf_patches.verify.comparing import live, require_same, same
from sglang_perf_patches.verify.stock import publish_server as publish
from sglang_perf_patches.verify.swa import window_metadata as window_batches
from sglang_perf_patches.verify.swa.window_metadata import EDGES, Play, Step, Windows, furnished
from tests.proof.mamba import waits

PATCH = "swa.window-metadata"
STEPS = {
    "replayed": Step("replayed", (20, 3, 40), padding=1),
    "decode": Step("decode", (20, 3, 40)),
    "extend": Step("extend", (20, 0, 40), (4, 4, 4)),
}


def windows_of_batches(count: int) -> int:
    """So many random plays on stock and with the patch; how many were compared."""
    publish()
    inputs = [*EDGES, *drawn(window_batches.drawn, count)]
    return same(PATCH, window_batches.play, inputs, stock=_of_stock)


def waits_for_windows() -> dict[str, dict[str, list[str]]]:
    """For each kind of metadata where stock, and the patched backend, would wait for a GPU."""
    publish()
    counts = {}
    for pool, windowed in (("", 0.75), ("no pool, ", 0.0)):
        for mode, step in STEPS.items():
            told = {"stock": _waits(step, windowed)}
            with live(PATCH, ran=None):
                told["patched"] = _waits(step, windowed)
            counts[f"{pool}{mode}"] = told
    return counts


def windows_not_served_are_stocks() -> dict[str, str]:
    """Each of these has stock's buffers, and its waits; what is said of it, if anything is."""
    publish()
    reasons = {}
    for name, change in LEFT.items():
        with change():
            expected = window_batches.play(EDGES[0])
            with live(PATCH, ran=False):
                require_same(name, expected, window_batches.play(EDGES[0]))
                engine.look_again()
                report = engine.report()
                assert report is not None
                reasons[name] = report.of(PATCH).reason or ""
    return reasons


def broken_windows() -> dict[str, str]:
    """What the checks say while something is broken in a way; "" if they pass."""
    said = dict.fromkeys(BREAKS, "")
    for how, change in BREAKS.items():
        publish()
        try:
            with mock.patch.object(body, *change):
                for edge in EDGES:  # up to the first that shows it
                    same(PATCH, window_batches.play, [edge], stock=_of_stock)
        except Exception as error:
            said[how] = f"{type(error).__name__}: {error}"
    return said


@cache
def _of_stock(wanted: Play) -> list[dict[str, Any]]:
    """What is compared with, once in this process: only what is ours is ever broken."""
    return window_batches.play(wanted)


@cache
def _counter() -> waits.Counter:
    counter = waits.Counter()
    waits.counting_kernels_as_device(counter)
    return counter


def _waits(step: Step, windowed: float) -> list[str]:
    wanted = Play((step,), windowed=windowed)
    counter = _counter()
    with furnished(wanted):
        windows = Windows(wanted, device=waits.DEVICE)
        inner = getattr(windows.pool, "full_kv_pool", windows.pool)
        parts = (windows.backend, windows.pool, inner, windows.allocator)
        counter.own(*(value for part in parts for value in vars(part).values()))
        counter.own(windows.runner.req_to_token_pool.req_to_token)
        batch = windows.batch(step)
        counter.own(*(v for name, v in vars(batch).items() if not name.endswith("_cpu")))
        if step.mode == "replayed":
            windows.capture(step)
        counter.found.clear()
        with counter:
            windows.prepare(step, batch)
        return list(counter.found)


@contextlib.contextmanager
def _another_pool() -> Iterator[None]:
    """Its class is derived from stock's, as that of unified memory is."""
    build = Windows._pools

    def pools(self: Windows) -> tuple[Any, Any]:
        pool, allocator = build(self)
        for each in (pool, allocator):
            each.__class__ = type(f"Other{type(each).__name__}", (type(each),), {})
        return pool, allocator

    with mock.patch.object(Windows, "_pools", pools):
        yield


@contextlib.contextmanager
def _a_larger_pool_of_windows() -> Iterator[None]:
    """What an earlier batch left in a buffer may be no slot of the full pool."""
    plays = Windows.__init__

    def made(self: Windows, wanted: Play, device: str | None = None) -> None:
        plays(self, window_batches.replace(wanted, windowed=1.5), device)

    with mock.patch.object(Windows, "__init__", made):
        yield


LEFT: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "another pool": _another_pool,
    "a larger pool of windows": _a_larger_pool_of_windows,
    "too many cells": lambda: mock.patch.object(body, "MOST", 8),
}


_translate, _room = body._translate, body._room


BREAKS: dict[str, tuple[str, Callable[..., Any]]] = {
    "cells behind the end are translated": (
        "_translate",
        lambda pool, end, cells: _translate(pool, torch.full_like(end, cells.numel()), cells),
    ),
    "the last cell is not translated": (
        "_translate",
        lambda pool, end, cells: _translate(pool, end, cells[:-1]),
    ),
    "nothing is translated": ("_translate", lambda *_: None),
    # What is behind the windows is no slot.
    "a new buffer holds anything": ("_room", lambda *given: _room(*given).fill_(1 << 40)),
}
