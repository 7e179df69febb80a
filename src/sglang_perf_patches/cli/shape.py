"""Rules for what of some JSON data may be shown: what no rule allows does not come out.

A rule takes any value and gives what may be shown of it. Text comes out only where it is one of
the names that a rule knows, so a rule never has to recognize what is private.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..bench.vocabulary import HIDDEN, OTHER

Rule = Callable[[Any], Any]
_LARGEST = 10**12
_LONGEST = 10_000


def number(value: Any) -> Any:
    """A finite number, not so long that it could be a key."""
    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) >= _LARGEST:
        return OTHER
    return value


def truth(value: Any) -> Any:
    """True or False."""
    return value if isinstance(value, bool) else OTHER


def hidden(_: Any) -> str:
    """That there is something."""
    return HIDDEN


def one_of(names: Collection[str], otherwise: str = OTHER) -> Rule:
    """One of some names."""

    def rule(value: Any) -> str:
        return value if isinstance(value, str) and value in names else otherwise

    return rule


def text(shown: Callable[[str], str]) -> Rule:
    """Text as `shown` gives it."""
    return lambda value: shown(value) if isinstance(value, str) else OTHER


def unless_missing(inner: Rule) -> Rule:
    """None, or what another rule gives."""
    return lambda value: None if value is None else inner(value)


def each(inner: Rule) -> Rule:
    """A list, element by element."""

    def rule(value: Any) -> Any:
        return [inner(one) for one in value[:_LONGEST]] if isinstance(value, list | tuple) else []

    return rule


def fields(rules: Mapping[str, Rule]) -> Rule:
    """An object of known keys; others are left out."""

    def rule(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return OTHER
        return {key: inner(value[key]) for key, inner in rules.items() if key in value}

    return rule


def by_name(names: Collection[str], inner: Rule) -> Rule:
    """An object whose keys are names; others are left out."""
    return fields(dict.fromkeys(names, inner))
