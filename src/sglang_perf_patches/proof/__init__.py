"""Proof on this machine: each patch compared with stock, on the installed sglang's own classes.

Every set has the same shape:

| where | what it holds |
| --- | --- |
| `proof.SET` | ``CASES``, a `Case` for each patch, and ``prepare()``, which comes before sglang |
| `proof.SET.rig` | the release's own classes, put together as far as the checks run them |
| `proof.SET.cases` | what is played on it: batches, loads, schedules, and how they are drawn |
| `sets.SET.PATCH.proof` | ``CHECKS``, the patch's own: a name for each scenario → what plays it |

A check plays the same inputs on stock and with the patch live, and raises `Different` where
anything that a kernel, a request or the scheduler sees is not the same. The cases of a set run in a
worker process of their own (see `worker`), so that the stand-ins of one set never reach another.
The tests run the same checks on every release, with inputs from hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from random import Random
from typing import Literal, Protocol, TypeVar

from .. import sets
from ..model.patch import room_of

T = TypeVar("T")

Device = Literal["cpu", "cuda", "mlx"]
"""``cpu``: tensors on the CPU and Triton's interpreter; ``cuda``: the machine's NVIDIA GPU with the
release's own kernels; ``mlx``: whatever device mlx has here."""


class Different(AssertionError):
    """A patch gave another result than stock; the text names it and its place."""


class Missing(Exception):
    """This machine lacks what a case needs; the text is the reason, for the operator."""


class Inputs(Protocol):
    """Where a case's inputs come from: seeded draws, or, in the tests, hypothesis."""

    def __call__(self, draw: Callable[[Random], T], count: int | None = None) -> list[T]:
        """So many inputs made by `draw`; as many as the source of inputs likes for None."""
        ...


Check = Callable[[Inputs], int]
"""Plays one scenario and returns how many comparisons it made; raises `Different` or `Missing`."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is compared for one patch.

    Attributes:
        patch: its id.
        what: the results that are compared, in a few words.
        device: where it runs.
        needs: modules without which it can't run here.
    """

    patch: str
    what: str
    device: Device = "cpu"
    needs: tuple[str, ...] = ("torch", "triton", "transformers")

    def checks(self) -> Mapping[str, Check]:
        """Import what the patch's room plays, by name; in the worker only."""
        checks: Mapping[str, Check] = import_module(
            f"{sets.__name__}.{room_of(self.patch)}.proof"
        ).CHECKS
        return checks


def cases(set_name: str) -> tuple[Case, ...]:
    """The cases of a set, as it declares them in ``proof.NAME.CASES``."""
    declared: tuple[Case, ...] = import_module(f"{__name__}.{set_name}").CASES
    return declared


def all_cases() -> tuple[Case, ...]:
    """The cases of all sets, in the order of ``list``."""
    return tuple(case for name in sets.NAMES for case in cases(name))
