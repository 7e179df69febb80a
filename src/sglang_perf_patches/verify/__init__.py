"""Compares patched results with stock's on this machine's device.

A patch is in here if its result depends on the device: on its kernels, its CUDA graphs, or MLX.
Its file is ``verify/SET/PATCH.py``: a docstring that says what must be equal, and ``CHECKS``, a
name for each scenario → what compares it. If that takes long, ``PATCH_PART.py`` has a part of it,
and each of the files runs in its own process. Every other patch is proven by ``tests/proof`` on a
CPU, on the code that the verdict ``applies`` identifies: another machine can't add to that.

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


class Needless(Missing):
    """On this device no server runs the patch in the way that a check compares."""


class Inputs(Protocol):
    """Where a check's inputs come from: seeded draws, or, in the tests, hypothesis."""

    def __call__(self, draw: Callable[[Random], T], count: int | None = None) -> list[T]:
        """So many inputs made by `draw`; for None, as many as the source chooses."""


Check = Callable[[Inputs], int]
"""Runs one scenario and returns how many comparisons it made; raises `Different` or `Missing`."""


@dataclass(frozen=True)
class Case:
    """What is compared on the device for one patch, or a part of that."""

    patch: str
    what: str  # what must be equal, in a sentence
    device: Device
    module: str  # its file, below this package


def cases(patch_id: str) -> list[Case]:
    """What of a patch depends on the device; only this decides it."""
    of_set, _, name = room_of(patch_id).partition(".")
    folder = Path(__file__).parent / of_set
    files = [*folder.glob(f"{name}.py"), *sorted(folder.glob(f"{name}_*.py"))]
    device: Device = "mlx" if of_set == "mlx" else "cuda"
    found = []
    for file in files:
        text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
        what = text.partition("\n")[0]
        found.append(Case(patch_id, what, device, f"{of_set}.{file.stem}"))
    return found


def checks(module: str) -> Mapping[str, Check]:
    """Import a case's checks, by name; this imports sglang."""
    return dict(import_module(f"{__name__}.{module}").CHECKS)
