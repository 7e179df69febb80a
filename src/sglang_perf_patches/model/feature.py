"""The set-up of a server: features that can be on beyond a plain one, as its release says it.

A plain server has none of them. What says that one is on are arguments of the server, as the
release resolved them, and functions that name the platform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

MISSING: Any = object()
"""In the place of a value: the release has nothing of that name."""

NOTHING: tuple[Any, ...] = (None, False, 0, "", "none", "null", "off")
"""Values with which an argument switches nothing on."""


_UNPROVEN = ", and it was not proven with that"


class Server(Protocol):
    """What a process has published of its server."""

    def read(self, name: str) -> Any:
        """The resolved value of an argument; `MISSING` where the release has none of that name.

        Raises:
            Exception: it has one that can't be read.
        """
        ...

    def unlike_default(self) -> Mapping[str, Any]:
        """The arguments that are not as the release has them by default, as they were given."""
        ...


@dataclass(frozen=True, kw_only=True)
class Feature:
    """Something that a server can have on, by any of its arguments.

    Attributes:
        name: the word by which a patch declares it.
        clause: the same as half a sentence: "LoRA is on".
        off: argument → the values with which it is off; any other is on.
        on: argument → the values with which it is on; any other is off.
        changed: arguments whose default is off, and whose values mean other things by the release.
        only: argument → the values without which the others say nothing.
    """

    name: str
    clause: str
    off: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    on: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def arguments(self) -> tuple[str, ...]:
        """Those that switch it."""
        return tuple(dict.fromkeys([*self.off, *self.on, *self.changed]))

    def is_on(self, server: Server) -> bool:
        """Whether a server has it on.

        Raises:
            Exception: an argument can't be read.
        """
        return self.switch(server) is not None

    def switch(self, server: Server) -> str | None:
        """The first of its arguments by which a server has it on; None if it is off.

        Raises:
            Exception: an argument can't be read.
        """
        if any(plain(server.read(name)) not in values for name, values in self.only.items()):
            return None
        changed = server.unlike_default() if self.changed else ()
        for name in self.changed:
            if name in changed:
                return name
        for values_of, is_one in ((self.off, False), (self.on, True)):
            for name, values in values_of.items():
                value = server.read(name)
                if value is not MISSING and (plain(value) in values) == is_one:
                    return name
        return None

    def told(self, server: Server) -> str | None:
        """The clause with the flag that switches it: ``LoRA is on (--enable-lora)``; None if off.

        The platform has no flag, and neither has what a release computes.

        Raises:
            Exception: an argument can't be read.
        """
        name = self.switch(server)
        if name is None:
            return None
        has_flag = name.isidentifier() and name != f"is_{self.name}"
        return f"{self.clause} ({flag(name)})" if has_flag else self.clause


@dataclass(frozen=True, kw_only=True)
class Use:
    """Something that patches are for, and that a server may lack.

    Attributes:
        name: the word by which a patch declares it (`Patch.only_with`).
        lacking: the clause for a server without it: "speculation is off".
        off: argument → the values with which it is lacking; any other says that it is there.
        on: argument → the values with which it is there; any other says that it is lacking.

    What one argument says is there is there, and what the release does not have says nothing.
    """

    name: str
    lacking: str
    off: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    on: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def is_there(self, server: Server) -> bool | None:
        """Whether a server has it; None if that is unknown, which counts as having it."""
        try:
            said = [
                (plain(value) in values) == is_one
                for values_of, is_one in ((self.off, False), (self.on, True))
                for name, values in values_of.items()
                if (value := server.read(name)) is not MISSING
            ]
        except Exception:
            return None
        return any(said) if said else None


@dataclass(frozen=True)
class Setup:
    """A server, read once.

    Attributes:
        on: feature → the clause about it, with its flag.
        lacking: use → the clause about it, for each that the server is known to lack.
        having: the uses that the server is known to have.
    """

    on: Mapping[str, str]
    lacking: Mapping[str, str]
    having: frozenset[str] = frozenset()


class Features:
    """All that are known, the arguments that are known to be none, and what patches are for."""

    def __init__(
        self,
        features: Iterable[Feature],
        is_classed: Callable[[str], bool],
        uses: Iterable[Use] = (),
    ) -> None:
        """Take them as they are; `is_classed` tells of an argument's name that none of them has."""
        self.all = tuple(features)
        self.uses = tuple(uses)
        self._is_classed = is_classed
        self._named = {name for feature in self.all for name in feature.arguments()}

    def knows(self, argument: str) -> bool:
        """Whether somebody has said what an argument of the server does to the patches."""
        return argument in self._named or self._is_classed(argument)

    def of(self, server: Server) -> dict[str, str]:
        """The features that a server has on, with what is said of each.

        What can't be read is on, and so is an argument that nobody has classed and that is not as
        the release has it by default: under its own name, which no patch declares.
        """
        clauses = {}
        for feature in self.all:
            try:
                told = feature.told(server)
                if told is not None:
                    clauses[feature.name] = told
            except Exception as error:
                clauses[feature.name] = f"whether {feature.clause} can't be read ({_line(error)})"
        try:
            unknown = [name for name in server.unlike_default() if not self.knows(name)]
        except Exception as error:
            return {**clauses, "?": f"the server's arguments can't be read ({_line(error)})"}
        return {**clauses, **{name: f"the server has {name}, which is unknown" for name in unknown}}

    def setup(self, server: Server) -> Setup:
        """Everything of a server that `ruling.ruling` asks about."""
        there = {use.name: use.is_there(server) for use in self.uses}
        return Setup(
            self.of(server),
            {use.name: use.lacking for use in self.uses if there[use.name] is False},
            frozenset(name for name, is_there in there.items() if is_there),
        )


def flag(argument: str) -> str:
    """``tp_size`` → ``--tp-size``."""
    return "--" + argument.replace("_", "-")


def unproven(proven_with: Mapping[str, str], on: Mapping[str, str]) -> str | None:
    """Why a patch is gated on a server; None if it was proven with all that the server has on.

    Args:
        proven_with: feature → the check that plays the patch with it.
        on: feature → what is said of it, as `Features.of` gives it.
    """
    missing = [clause for name, clause in on.items() if name not in proven_with]
    return f"{missing[0]}{_UNPROVEN}" if missing else None


def cause(reason: str) -> str:
    """A reason for which patches are gated, as the log says it of several of them.

    >>> cause("tensor parallelism is on (--tp-size), and it was not proven with that")
    'by tensor parallelism'
    >>> cause("requests have priorities (--enable-priority-scheduling)")
    'because requests have priorities'
    >>> cause("it needs mlx.kv-arena: LoRA is on (--enable-lora)")
    'by LoRA'
    """
    while reason.startswith("it needs ") and ": " in reason:  # which may need another one
        reason = reason.partition(": ")[2]
    clause = reason.removesuffix(_UNPROVEN).partition(" (--")[0]
    short = clause.removesuffix(" is on")
    return f"by {short}" if short != clause else f"because {clause}"


def flag_in(reason: str) -> str:
    """The flag that a reason names: ``--tp-size``; "" if it names none."""
    _, found, rest = reason.partition(" (--")
    return f"--{rest.partition(')')[0]}" if found else ""


def plain(value: Any) -> Any:
    """A value as it is compared: an enum's value, text in small letters, an empty one as None."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return value.strip().lower() or None
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return value or None
    return value


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:100]
