"""The features that a server uses, read from its arguments.

A plain server uses none. Whether one is on follows from the arguments, as the release resolved
them, and from functions that name the platform.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from .inert_args import NAMES, PREFIXES

MISSING: Any = object()
"""The value of a name that the release does not have."""

NOTHING: tuple[Any, ...] = (None, False, 0, "", "none", "null", "off")
"""Values of an argument that switch nothing on."""

Values = Mapping[str, tuple[Any, ...]]
"""Argument → values that it can have, as `plain` gives them."""

UNPROVEN = ": this patch was not tested with that"
"""In the reason of a patch that was not proven with a feature, after the feature."""


class Server(Protocol):
    """The arguments of a server, as far as they are known."""

    def read(self, name: str) -> Any:
        """The resolved value of an argument, or an exception; `MISSING` if the release lacks it."""

    def unlike_default(self) -> Mapping[str, Any]:
        """The arguments that differ from the release's defaults, with their values."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition on a server that any one of its arguments can fulfil."""

    name: str  # the word by which patches declare it
    off: Values = field(default_factory=dict)  # with these it doesn't hold, with any other it does
    on: Values = field(default_factory=dict)  # with these it holds, with any other it doesn't

    def answers(self, server: Server) -> Iterator[tuple[str, bool]]:
        """Each argument that the release has, and whether its value fulfils the condition."""
        for name in (*self.off, *self.on):
            value = server.read(name)
            if value is not MISSING:
                yield name, self.says(name, value)

    def says(self, name: str, value: Any) -> bool:
        """Whether this value of one of its arguments fulfils the condition."""
        if name in self.off:
            return plain(value) not in self.off[name]
        return plain(value) in self.on[name]


@dataclass(frozen=True, kw_only=True)
class Feature(Condition):
    """Something that a server can use; patches declare it in `Patch.proven_with`."""

    clause: str  # its name as half a sentence: "LoRA is on"
    changed: tuple[str, ...] = ()  # switch it on if they differ from the release's default
    only: Values = field(default_factory=dict)  # with any other value there, the feature is off

    def arguments(self) -> tuple[str, ...]:
        """The arguments that can switch it on, each once."""
        return tuple(dict.fromkeys([*self.off, *self.on, *self.changed]))

    def flags(self) -> list[str]:
        """The flags that switch it on, with the values that do: ``--tp-size``."""
        return [
            " ".join([flag(name), "|".join(map(str, self.on.get(name, ())))]).rstrip()
            for name in self.arguments()
            if self._has_flag(name)
        ]

    def is_on(self, server: Server) -> bool:
        """Whether a server uses it; raises what `told` raises."""
        return self.told(server) is not None

    def told(self, server: Server) -> str | None:
        """The clause with its flag: ``LoRA is on (--enable-lora)``; None if the feature is off.

        The flag is the first of those that switch it on, one that the operator typed before one
        that the release resolved. An argument that can't be read raises an exception.
        """
        if any(plain(server.read(name)) not in values for name, values in self.only.items()):
            return None
        on = [name for name in self.changed if name in server.unlike_default()]
        on += [name for name, is_on in self.answers(server) if is_on]
        if not on:
            return None
        given = server.unlike_default()
        typed = [name for name in (*self.off, *self.on) if name in given]
        name = next((name for name in typed if self.says(name, given[name])), on[0])
        return f"{self.clause} ({flag(name)})" if self._has_flag(name) else self.clause

    def _has_flag(self, name: str) -> bool:
        """Whether an argument is one; not the platform, nor a value that the release computes."""
        return name.isidentifier() and name != f"is_{self.name}"


@dataclass(frozen=True, kw_only=True)
class Use(Condition):
    """Something that patches need (`Patch.only_with`), and that a server may lack."""

    lacking: str  # the clause for a server without it: "speculation is off"
    every: bool = False  # whether each of its arguments must say that it is there, not only one

    def is_there(self, server: Server) -> bool | None:
        """Whether a server has it; None if unknown, which the rulings treat as having it."""
        try:
            answers = [is_there for _, is_there in self.answers(server)]
        except Exception:
            return None
        if not answers:
            return None
        return all(answers) if self.every else any(answers)


@dataclass(frozen=True)
class Setup:
    """A server's features and uses, read once."""

    on: Mapping[str, str]  # feature that is on → its clause, with its flag
    lacking: Mapping[str, str]  # use that the server is known to lack → its clause
    having: frozenset[str] = frozenset()  # the uses that the server is known to have

    def meets(self, words: str) -> bool:
        """Whether all of these features are on and uses there; ``-word`` must be off or lacking."""
        there = self.on.keys() | self.having
        asked = words.split()
        return all((word.removeprefix("-") in there) != word.startswith("-") for word in asked)


class Features:
    """All features and uses that this project knows."""

    def __init__(self, features: Iterable[Feature], uses: Iterable[Use]) -> None:
        self.all = tuple(features)
        self.uses = tuple(uses)
        self._named = {name for feature in self.all for name in feature.arguments()}

    def knows(self, argument: str) -> bool:
        """Whether an argument switches a known feature, or is known to switch none."""
        return argument in self._named or argument in NAMES or argument.startswith(PREFIXES)

    def of(self, server: Server) -> dict[str, str]:
        """Feature that is on → its clause.

        A feature that can't be read counts as on. An unclassified argument counts as on when it
        differs from its default: it stands under its own name, so no patch is proven with it.
        """
        clauses = {}
        for feature in self.all:
            try:
                if (told := feature.told(server)) is not None:
                    clauses[feature.name] = told
            except Exception as error:
                clauses[feature.name] = f"whether {feature.clause} can't be read ({_line(error)})"
        try:
            unknown = [name for name in server.unlike_default() if not self.knows(name)]
        except Exception as error:
            return {**clauses, "?": f"the server's arguments can't be read ({_line(error)})"}
        return {**clauses, **{name: f"the server has {name}, which is unknown" for name in unknown}}

    def setup(self, server: Server) -> Setup:
        """Read a server's features and uses, for `setups.ruling`."""
        there = {use.name: use.is_there(server) for use in self.uses}
        return Setup(
            self.of(server),
            {use.name: use.lacking for use in self.uses if there[use.name] is False},
            frozenset(name for name, is_there in there.items() if is_there),
        )


def flag(argument: str) -> str:
    """``tp_size`` → ``--tp-size``."""
    return "--" + argument.replace("_", "-")


def cause(reason: str) -> str:
    """The reason of a gated patch, shortened for a log line about several patches.

    >>> cause("tensor parallelism is on (--tp-size): this patch was not tested with that")
    'by tensor parallelism'
    >>> cause("requests have priorities (--enable-priority-scheduling)")
    'because requests have priorities'
    >>> cause("it needs mlx.kv-arena: LoRA is on (--enable-lora)")
    'by LoRA'
    >>> cause("the GPU is new: this patch was not tested with that; to test it: run X")
    'because the GPU is new; to test it: run X'
    """
    while reason.startswith("it needs ") and ": " in reason:  # one that may need another
        reason = reason.partition(": ")[2]
    reason, _, more = reason.partition(UNPROVEN)
    clause = reason.partition(" (--")[0]
    short = clause.removesuffix(" is on")
    return (f"by {short}" if short != clause else f"because {clause}") + more


def plain(value: Any) -> Any:
    """A value for comparison: an enum's value, text in lower case, None for anything empty."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return value.strip().lower() or None
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return value or None
    return value


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:100]
