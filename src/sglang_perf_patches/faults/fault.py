"""A known fault, and whether a server has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..model import releases
from ..model.feature import MISSING, Server, plain
from ..model.setups import FEATURES


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of some releases.

    Attributes:
        name: one word for it.
        symptom: what an operator sees, as a sentence without its full stop.
        releases: a span, as `model.releases.from_spans` reads it.
        fixed: whether the release after the last one is without it.
        threads: numbers of upstream's issues and pull requests.
        on: what a server must have: features and uses of `model.setups`, separated by spaces.
            ``-word`` must be off; of ``one|other`` either is enough.
        reads: argument → the values that it must have, in lower case.
        unlike: argument → the values that it must not have.
        help: what helps besides an upgrade; "" if nothing does.
        patch: the patch of ours that prevents it.
        is_sure: False if it also depends on something that no argument tells.
    """

    name: str
    symptom: str
    releases: str
    fixed: bool = False
    threads: tuple[int, ...] = ()
    on: str = ""
    reads: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    unlike: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    help: str = ""
    patch: str = ""
    is_sure: bool = True

    @property
    def numbers(self) -> str:
        """The threads: ``#39342, #39526``."""
        return ", ".join(f"#{number}" for number in self.threads)

    @property
    def fixed_in(self) -> str:
        """The first release without it; "" if none is known."""
        last = releases.from_spans(self.releases)[-1]
        return releases.KNOWN[releases.KNOWN.index(last) + 1] if self.fixed else ""

    @property
    def remedy(self) -> str:
        """What to do, as half a sentence."""
        upgrade = f"upgrade to {self.fixed_in}" if self.fixed else ""
        patch = f"our {self.patch} prevents it where it is live" if self.patch else ""
        parts = filter(None, (", or ".join(filter(None, (upgrade, self.help))), patch))
        return "; ".join(parts) or "no remedy is known"

    def is_on(self, server: Server) -> bool | None:
        """Whether a server has it; None if that can't be read."""
        said = [_any(word.split("|"), server) for word in self.on.split()]
        said += [_read(server, name, values) for name, values in self.reads.items()]
        said += [_not(_read(server, name, values)) for name, values in self.unlike.items()]
        if False in said:
            return False
        return None if None in said or not self.is_sure else True


def _any(words: list[str], server: Server) -> bool | None:
    said = [_has(word, server) for word in words]
    if True in said:
        return True
    return None if None in said else False


def _has(word: str, server: Server) -> bool | None:
    """Whether a feature is on or a use is there; None if that can't be read."""
    if word.startswith("-"):
        return _not(_has(word[1:], server))
    use = next((each for each in FEATURES.uses if each.name == word), None)
    if use is not None:
        return use.is_there(server)
    feature = next(each for each in FEATURES.all if each.name == word)
    try:
        return feature.is_on(server)
    except Exception:
        return None


def _read(server: Server, name: str, values: tuple[Any, ...]) -> bool | None:
    """Whether an argument has one of these values; None if it can't be read."""
    try:
        value = server.read(name)
    except Exception:
        return None
    return None if value is MISSING else plain(value) in values


def _not(said: bool | None) -> bool | None:
    return None if said is None else not said
