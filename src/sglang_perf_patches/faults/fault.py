"""A known fault, and whether a server has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from ..model import releases
from ..model.feature import Server, Use
from ..model.setups import FEATURES

_SINCE = re.compile(r" from (\d[\w.]*) on\b")
_ASK: dict[str, Callable[[Server], bool | None]] = {
    **{feature.name: feature.is_on for feature in FEATURES.all},
    **{use.name: use.is_there for use in FEATURES.uses},
}


@dataclass(frozen=True)
class Fault:
    """A fault of some releases: what a server must have, and what helps other than an upgrade."""

    name: str  # one word for it
    releases: str  # a span, as `model.releases.from_spans` reads it; the release after it has a fix
    threads: tuple[int, ...] = ()  # upstream's issues and pull requests
    _: KW_ONLY
    symptom: str  # what an operator sees, as a sentence without its full stop
    # Features and uses of `model.setups`, separated by spaces. ``-word`` must be off; of
    # ``one|other`` either is enough.
    on: str = ""
    reads: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # values in lower case
    unlike: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # which it must not have
    help: str = ""
    patch: str = ""  # the patch of ours that prevents it
    is_sure: bool = True  # False if it also depends on something that no argument tells

    @property
    def numbers(self) -> str:
        """The threads: ``#39342, #39526``."""
        return ", ".join(f"#{number}" for number in self.threads)

    @property
    def fixed_in(self) -> str:
        """The first release without it; "" if none is known."""
        last = releases.from_spans(self.releases)[-1]
        later = releases.KNOWN[releases.KNOWN.index(last) + 1 :]
        return later[0] if later else ""

    def remedy(self, release: str = "", ours: str | None = None) -> str:
        """What to do, as half a sentence, without what a release (if named) does not have.

        `ours`: what to say of our patch, "" for nothing; None if its state is not known.
        """
        upgrade = f"upgrade to {self.fixed_in}" if self.fixed_in else ""
        if ours is None:
            ours = f"our {self.patch} prevents it where it is live" if self.patch else ""
        helps = filter(None, (_on(release, part) for part in self.help.split(", or ")))
        parts = filter(None, (", or ".join(filter(None, (upgrade, *helps))), ours))
        return "; ".join(parts) or "nothing is known"

    def text(self, release: str = "", *, is_sure: bool = True, ours: str | None = None) -> str:
        """Symptom and threads, then `remedy`."""
        maybe = "" if is_sure else "perhaps "
        numbers = f" ({self.numbers})" if self.threads else ""
        return f"{maybe}{self.symptom}{numbers}. What helps: {self.remedy(release, ours)}"

    def data(self, release: str = "", *, is_sure: bool = False) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "name": self.name,
            "is_sure": is_sure,
            "symptom": self.symptom,
            "threads": list(self.threads),
            "fixed_in": self.fixed_in,
            "remedy": self.remedy(release),
        }

    def is_on(self, server: Server) -> bool | None:
        """Whether a server has it; None if that can't be read."""
        said = [_any(words.split("|"), server) for words in self.on.split()]
        uses = [Use(name="", lacking="", on={name: of}) for name, of in self.reads.items()]
        uses += [Use(name="", lacking="", off={name: of}) for name, of in self.unlike.items()]
        said += [use.is_there(server) for use in uses]
        if False in said:
            return False
        return None if None in said or not self.is_sure else True


def _on(release: str, help: str) -> str:
    """What helps on a release: ``… from 0.5.18 on`` helps on no older one, and needs no mention."""
    first = _SINCE.search(help)
    if first is None or release not in releases.KNOWN:
        return help
    is_older = releases.KNOWN.index(release) < releases.KNOWN.index(first[1])
    return "" if is_older else _SINCE.sub("", help)


def _any(words: list[str], server: Server) -> bool | None:
    """Whether any of these features is on or uses is there; None if that can't be read."""
    said = set()
    for word in words:
        ask = _ASK[word.removeprefix("-")]
        try:
            is_there = ask(server)
        except Exception:
            is_there = None
        said.add(is_there if is_there is None else is_there != word.startswith("-"))
    if True in said:
        return True
    return None if None in said else False
