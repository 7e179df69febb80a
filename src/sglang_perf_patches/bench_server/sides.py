"""The sides of a comparison: what each adds to the operator's command, and its patches."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..model.errors import OperatorError
from ..model.switch import VARIABLE, is_off
from . import redact

_OF_BOTH = ("--port", "--host", "--api-key", "--ssl-certfile", "--ssl-keyfile")


@dataclass(frozen=True)
class Side:
    """One side."""

    name: str  # ``stock`` and ``patched``, or ``a`` and ``b`` if the operator describes them
    selection: str = "none"  # its ``SGLANG_PERF_PATCHES``
    needs_live: bool = False  # whether its server must have a live patch
    variables: Mapping[str, str] = field(default_factory=dict)  # the others that it adds
    flags: Sequence[str] = ()  # the words that it appends to the command

    @property
    def is_patched(self) -> bool:
        """Whether it may have live patches."""
        return not is_off(self.selection)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its server."""
        return {**os.environ, **self.variables, VARIABLE: self.selection}

    @property
    def adds(self) -> str:
        """What it adds to the command, without secrets; "" for nothing."""
        added = dict(self.variables)
        if self.needs_live or not self.is_patched:
            added[VARIABLE] = self.selection
        return redact.shown([*(f"{name}={value}" for name, value in added.items()), *self.flags])


def described(
    a: str | None, b: str | None, selection: str, command: Sequence[str]
) -> tuple[Side, Side]:
    """The sides that an operator describes: variables ``NAME=VALUE``, then flags of the server.

    None for `a` is the command as it is. `selection` is for sides that do not set theirs.

    Raises:
        OperatorError: a text is malformed, sets something that both sides must share, or both
            sides are the same.
    """
    if b is None:
        raise OperatorError("--a needs a side to compare with: give --b as well")
    first, second = _side("a", a or "", selection), _side("b", b, selection)
    is_script = any(re.fullmatch("-[a-z]*c", word) for word in command)
    if (first.flags or second.flags) and is_script:
        raise OperatorError(
            "flags can't be put at the end of a shell's script: name the server itself after --"
        )
    if replace(second, name=first.name, needs_live=first.needs_live) == first:
        raise OperatorError("--a and --b are the same server")
    return first, second


def _side(name: str, text: str, selection: str) -> Side:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise OperatorError(f"--{name}: {error}") from error
    variables: dict[str, str] = {}
    while words and (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[0], re.DOTALL)):
        variables[match[1]] = match[2]
        del words[0]
    if words and not words[0].startswith("-"):
        raise OperatorError(
            f"--{name}: word {len(variables) + 1} is neither NAME=VALUE nor a flag of the server"
        )
    for flag in (word.partition("=")[0] for word in words):
        if flag in _OF_BOTH:
            raise OperatorError(f"--{name}: {flag} belongs to the command, after --")
    needs_live = not is_off(variables.get(VARIABLE, "none"))
    return Side(name, variables.pop(VARIABLE, selection), needs_live, variables, words)
