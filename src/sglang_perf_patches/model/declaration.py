"""How a patch is written: one declaration, and next to it the functions that replace stock's.

The docstring of its module begins with the summary that ``list`` prints. Each function names what
it replaces once, in its decorator. A short one is `sets.mlx.relay_device`.

A verdict imports these modules, so they import none of sglang, torch, triton, mlx and numpy, except
inside a function. The functions of a long patch are in a module ``body`` next to the declaration.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

from .patch import Patch, Variant, Worth
from .patching import Patching
from .releases import TO, from_spans

Target = str | Mapping[str, str]
"""A definition of stock's, or spans of releases → what it is called there."""

F = TypeVar("F", bound=Callable[..., Any])


def gains(because: str, row: str) -> Worth:
    """On by default, because a server was measured to gain; `row` is ``mlx.md#server-at-once``."""
    page, _, id = row.partition("#")
    return Worth("a", because, f"tests/benchmarks/results/{page}", id)


def fixes(because: str) -> Worth:
    """On by default, because it prevents a fault."""
    return Worth("b", because)


def ports(because: str) -> Worth:
    """On by default, because it is one of the upstream changes that the project was made for."""
    return Worth("c", because)


class _Part(NamedTuple):
    """What holds on some releases: attributes of their variants, and what is done there."""

    releases: tuple[str, ...]
    holds: Mapping[str, Any]
    do: Callable[[Patching], None] = lambda _: None


class Declaration:
    """A patch, as its module writes it; `patch` is what the rest of the package reads.

    Args:
        module: the ``__name__`` of the patch's package.
        spans: all of its releases, as in `releases.from_spans`.
        depends: see `Variant`, as for `awaits`.
        anytime: why it may be removed whenever none of its calls runs. A patch that holds work
            between its calls calls `Patching.drain` in its set-up instead.
        rest: the other attributes of `Patch`. Without a `worth` it is opt-in.
    """

    def __init__(
        self,
        module: str,
        spans: str,
        *,
        depends: tuple[str, ...] = (),
        awaits: tuple[str, ...] = (),
        anytime: str = "",
        **rest: Any,
    ) -> None:
        family, name = module.split(".")[-2:]
        self.id = f"{family}.{name.replace('_', '-')}"
        self.anytime = anytime
        summary = (sys.modules[module].__doc__ or "").partition("\n")[0].rstrip(".")
        summary = summary[:1].lower() + summary[1:]
        kind = "exact" if "worth" in rest else "policy"
        self.rest = {"summary": summary, "kind": kind, **rest}
        self.releases = from_spans(spans)
        self._parts: list[_Part] = []
        self.on("", depends=depends, awaits=awaits)

    def replaces(
        self, *targets: Target, releases: str = "", adds: bool = False
    ) -> Callable[[F], F]:
        """A decorator: the function replaces these definitions, or adds them if stock has none.

        It gets their arguments as stock's signature binds them: positional parameters by position,
        with defaults filled in, keyword-only parameters by name. Two more have to be keyword-only,
        and may be left out: `patch`, the patch in this process, and `stock`, what was there before:
        stock's own function or another patch's.

        Args:
            targets: the definitions.
            releases: those of the patch's releases on which it does so; all if empty. A span may
                lack its first or its last release: ``"0.5.16 …"``.
            adds: whether stock has no such definition.
        """

        def declare(function: F) -> F:
            self.makes(*targets, releases=releases, adds=adds)(partial(_bound, function))
            return function

        return declare

    def makes(self, *targets: Target, releases: str = "", adds: bool = False) -> Callable[[F], F]:
        """As `replaces`; the function is ``make(patch, stock)``, which returns what replaces it.

        It runs before the patch goes live, and may import torch. What it returns is called faster
        than a function of `replaces`, and need not be a function.
        """

        def declare(make: F) -> F:
            for target in targets:
                there = {releases: target} if isinstance(target, str) else target
                for spans, name in there.items():
                    holds = {"adds" if adds else "targets": (name,)}
                    do = partial(_override, name, make)
                    self._parts.append(_Part(self._within(spans), holds, do))
            return make

        return declare

    def setup(self, releases: str = "") -> Callable[[F], F]:
        """A decorator: ``function(patch)`` runs before anything changes.

        It may fill ``patch.state``, call `Patching.drain`, or raise `Gated`.
        """

        def declare(function: F) -> F:
            self._parts.append(_Part(self._within(releases), {}, function))
            return function

        return declare

    def on(self, releases: str, **rest: Any) -> None:
        """More of these releases: `depends`, `awaits`, `note`, `not_with`, `only_with`."""
        self._parts.append(_Part(self._within(releases), rest))

    def patch(self) -> Patch:
        """The finished declaration. Releases on which all the same holds make a variant."""
        there: dict[tuple[int, ...], list[str]] = {}
        for release in self.releases:
            numbers = (n for n, part in enumerate(self._parts) if release in part.releases)
            there.setdefault(tuple(numbers), []).append(release)
        variants = (
            self._variant(releases, [self._parts[n] for n in numbers])
            for numbers, releases in there.items()
        )
        return Patch(id=self.id, variants=tuple(variants), **self.rest)

    def _variant(self, releases: Iterable[str], parts: list[_Part]) -> Variant:
        made: dict[str, Any] = {"targets": (), "depends": ()}
        for part in parts:
            for name, value in part.holds.items():
                made[name] = made.get(name, type(value)()) + value
        made = {k: v if isinstance(v, str) else tuple(dict.fromkeys(v)) for k, v in made.items()}
        # It depends on no definition that it changes.
        made["depends"] = tuple(name for name in made["depends"] if name not in made["targets"])

        def install(patching: Patching) -> None:
            for part in parts:
                part.do(patching)

        return Variant(releases=tuple(releases), install=install, **made)

    def _within(self, spans: str) -> tuple[str, ...]:
        """Those of the patch's own releases that are in the spans, whose ends are such releases."""
        if not spans:
            return self.releases
        named: set[str] = set()
        for span in spans.split(", "):
            first, to, last = (each.strip() for each in span.partition("…"))
            first, last = first or self.releases[0], last or self.releases[-1]
            if wrong := {first, last}.difference(self.releases):
                raise ValueError(f"{self.id} is not for {wrong.pop()}, which it names in {spans!r}")
            named.update(from_spans(f"{first}{TO}{last}" if to else first))
        return tuple(release for release in self.releases if release in named)


def _override(reference: str, make: Callable[[Patching, Any], Any], patching: Patching) -> None:
    patching.override(reference, partial(make, patching))


def _bound(function: Any, patch: Patching, stock: Any) -> FunctionType:
    """A copy with values for `patch` and `stock`, so that a call of stock's is one of it."""
    code = function.__code__
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
    names = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    given = {"patch": patch, "stock": stock}
    made.__kwdefaults__ = dict(function.__kwdefaults__ or {})
    made.__kwdefaults__ |= {name: given[name] for name in names if name in given}
    return made
