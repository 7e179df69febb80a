"""Compares patched results with stock's on this machine's device.

A patch is in here if its result depends on the device: on its kernels, its CUDA graphs, or MLX.
Its file is ``verify/SET/PATCH.py``: a docstring that says what must be equal, and ``CHECKS``, a
name for each scenario → what compares it. Every other patch is proven by ``tests/proof`` on a CPU,
on the code that the verdict ``applies`` identifies: another machine can't add to that.

A check raises `Different` where anything that a kernel or a request sees is not stock's. The tests
run the same checks on every release, on a CPU with Triton's interpreter, with inputs from
hypothesis.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Literal, Protocol, TypeVar

from ..model.patch import room_of

T = TypeVar("T")

Device = Literal["cuda", "mlx"]
"""``cuda``: an NVIDIA GPU with the release's own kernels; ``mlx``: whatever device mlx has here."""

NEEDS: dict[Device, tuple[str, ...]] = {"cuda": ("torch", "triton"), "mlx": ("mlx", "mlx_lm")}
"""Modules without which nothing runs on a device."""


class Different(AssertionError):
    """A patch gave another result than stock; the text names it and its place."""


class Missing(Exception):
    """This machine lacks what a check needs; the text is the reason, for the operator."""


class Inputs(Protocol):
    """Where a check's inputs come from: seeded draws, or, in the tests, hypothesis."""

    def __call__(self, draw: Callable[[Random], T], count: int | None = None) -> list[T]:
        """So many inputs made by `draw`; as many as the source of inputs likes for None."""
        ...


Check = Callable[[Inputs], int]
"""Runs one scenario and returns how many comparisons it made; raises `Different` or `Missing`."""


@dataclass(frozen=True)
class Case:
    """What is compared on the device for one patch.

    Attributes:
        patch: its id.
        what: what must be equal, in a sentence.
        device: where it runs.
    """

    patch: str
    what: str
    device: Device


def case(patch_id: str) -> Case | None:
    """What of a patch depends on the device; None if nothing does. Only this decides it."""
    path = Path(__file__).parent / f"{room_of(patch_id).replace('.', '/')}.py"
    if not path.is_file():
        return None
    what = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]
    return Case(patch_id, what, "mlx" if patch_id.startswith("mlx.") else "cuda")


def checks(patch_id: str) -> Mapping[str, Check]:
    """Import a case's checks, by name; this imports sglang."""
    of_patch: Mapping[str, Check] = import_module(f"{__name__}.{room_of(patch_id)}").CHECKS
    return of_patch
