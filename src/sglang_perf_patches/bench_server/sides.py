"""The sides of a comparison: what each adds to the operator's command, and its patches."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from ..model.switch import VARIABLE, is_off
from . import UsageError, secrets

NAMES = ("a", "b", "c", "d")
"""The names of sides that an operator describes; each is compared with the first."""

_OF_BOTH = ("--port", "--host", "--api-key", "--ssl-certfile", "--ssl-keyfile")


@dataclass(frozen=True)
class Side:
    """One side.

    Attributes:
        name: ``stock`` and ``patched``, or one of `NAMES`.
        selection: its ``SGLANG_PERF_PATCHES``; `variables` are the others that it adds.
        needs_live: whether its server must have a live patch.
        flags: the words that it appends to the command.
    """

    name: str
    selection: str = "none"
    needs_live: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    @property
    def is_patched(self) -> bool:
        """Whether it may have live patches."""
        return not is_off(self.selection)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its server."""
        return {**os.environ, **self.variables, VARIABLE: self.selection}

    @property
    def said(self) -> str:
        """What it adds to the command, without secrets; "" for nothing."""
        added = dict(self.variables)
        if self.needs_live or not self.is_patched:
            added[VARIABLE] = self.selection
        return secrets.shown([*(f"{name}={value}" for name, value in added.items()), *self.flags])


def stock_and_patched(selection: str) -> tuple[Side, Side]:
    """The sides without patches and with them."""
    return Side("stock"), Side("patched", selection, needs_live=True)


def described(
    texts: Sequence[str | None], selection: str, command: Sequence[str]
) -> tuple[Side, ...]:
    """The sides that an operator describes, in the order of `NAMES`.

    Args:
        texts: for each of `NAMES`, variables ``NAME=VALUE`` followed by flags of the server; None
            if that side is not used. For the first side None means the command as it is.
        selection: ``SGLANG_PERF_PATCHES`` of sides that do not set it.
        command: the operator's command.

    Raises:
        UsageError: a text is malformed, sets something that both sides must share, or describes
            the same side as another.
    """
    if all(text is None for text in texts[1:]):
        raise UsageError("--a needs a side to compare with: give --b as well")
    described = [
        _side(name, text or "", selection)
        for at, (name, text) in enumerate(zip(NAMES, texts, strict=True))
        if text is not None or at == 0
    ]
    if any(side.flags for side in described) and secrets.OF_SHELLS & set(command):
        raise UsageError(
            "flags can't be put at the end of a shell's script: name the server itself after --"
        )
    for other, one in combinations(described, 2):
        if replace(one, name=other.name, needs_live=other.needs_live) == other:
            raise UsageError(f"--{other.name} and --{one.name} are the same server")
    return tuple(described)


def _side(name: str, text: str, selection: str) -> Side:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--{name}: {error}") from error
    variables: dict[str, str] = {}
    while words and (match := secrets.VARIABLE.fullmatch(words[0])):
        variables[match[1]] = match[2]
        del words[0]
    if words and not words[0].startswith("-"):
        raise UsageError(
            f"--{name}: word {len(variables) + 1} is neither NAME=VALUE nor a flag of the server"
        )
    for flag in (word.partition("=")[0] for word in words):
        if flag in _OF_BOTH:
            raise UsageError(f"--{name}: {flag} belongs to the command, after --")
    own = variables.pop(VARIABLE, None)
    effective = selection if own is None else own
    return Side(name, effective, own is not None and not is_off(own), variables, tuple(words))
