"""One patch live for a while, and results that must be equal bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import sglang_perf_patches


@contextmanager
def live(patch: str, *, ran: bool = True) -> Iterator[None]:
    """Have one patch live, and see that its code ran."""
    report = sglang_perf_patches.activate(patch)
    try:
        state = report.of(patch)
        assert state.state == "live", f"{patch} is {state.state}: {state.reason}"
        yield
        seen = sglang_perf_patches.activate(patch).of(patch)
        assert seen.ran == ran, f"{patch} {'never ran' if ran else 'ran'}"
    finally:
        sglang_perf_patches.deactivate()


def differs(expected: Any, found: Any, where: str = "result") -> str | None:
    """Where two results differ, bit by bit; None where they don't."""
    if type(expected) is not type(found):
        return f"{where} is {type(found).__name__}, not {type(expected).__name__}"
    if isinstance(expected, torch.Tensor):
        if expected.dtype != found.dtype or expected.shape != found.shape:
            return (
                f"{where} is {found.dtype} {tuple(found.shape)}, "
                f"not {expected.dtype} {tuple(expected.shape)}"
            )
        same = torch.equal(expected.view(torch.uint8), found.view(torch.uint8))
        return None if same else f"{where} is {found}, not {expected}"
    if isinstance(expected, dict):
        if expected.keys() != found.keys():
            return f"{where} has {sorted(found)}, not {sorted(expected)}"
        pairs = [(f"{where}[{key!r}]", expected[key], found[key]) for key in expected]
    elif isinstance(expected, list | tuple):
        if len(expected) != len(found):
            return f"{where} has {len(found)} items, not {len(expected)}"
        pairs = [
            (f"{where}[{i}]", one, other)
            for i, (one, other) in enumerate(zip(expected, found, strict=True))
        ]
    else:
        return None if expected == found else f"{where} is {found!r}, not {expected!r}"
    for name, one, other in pairs:
        difference = differs(one, other, name)
        if difference:
            return difference
    return None
