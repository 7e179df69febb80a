"""Which server this process runs, as sglang published it, and which patches that keeps off.

Nothing of sglang is imported here. Where the arguments are depends on the release:

- up to 0.5.14, a function of ``server_args`` stores the resolved ``ServerArgs``;
- from 0.5.15 on, a ``RuntimeContext`` holds them;
- from 0.5.17 on, that context also holds resolved values in groups. A group's value wins over the
  argument of the same name.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

from .. import verified
from ..model import setups
from ..model.computed import RESOLVED, of_model
from ..model.feature import MISSING, Server, Setup
from ..model.patch import Patch
from ..model.setups import Ruling, ruling
from .imports import Watched, is_loaded
from .member import Member

ARGUMENTS = "sglang.srt.server_args"
CONTEXT = "sglang.srt.runtime_context"
UTILS = "sglang.srt.utils"
MODULES = (UTILS, ARGUMENTS, CONTEXT)
"""The modules that publish the server's arguments or name its platform."""


class Published:
    """A `model.feature.Server`: the ``ServerArgs`` that this process has published.

    Before it has published any, only the platform can be read. `context` is the ``RuntimeContext``
    that holds them, if the release has one.
    """

    def __init__(self, arguments: Any = None, context: Any = None) -> None:
        self._arguments = arguments
        self._context = context

    def read(self, name: str) -> Any:
        """See `model.feature.Server.read`.

        Besides arguments it reads ``is_…`` (the functions of ``sglang.srt.utils``), ``model.…``
        (see `of_model`), those of `RESOLVED`, ``gpu.capability``, ``GROUP.NAME`` (what the
        context computes) and names in capitals (environment variables).
        """
        if name.startswith("is_") and is_loaded(UTILS) and hasattr(sys.modules[UTILS], name):
            return bool(getattr(sys.modules[UTILS], name)())
        if self._arguments is None:
            return MISSING
        if name.isupper():
            return os.environ.get(name)
        if name.startswith("model."):
            return of_model(self._arguments, name.partition(".")[2])
        if name == "gpu.capability":
            from .. import gpu  # a server without a GPU never asks

            return gpu.capability()
        if name in RESOLVED:
            return RESOLVED[name](self.read)
        if "." in name:
            group, name = name.split(".")
            of_group = getattr(self._context, group, None)
            return getattr(of_group, name) if hasattr(type(of_group), name) else MISSING
        groups: Any = sys.modules.get("sglang.srt.arg_groups.arg_utils")
        path = None
        if self._context is not None and hasattr(groups, "namespace_of"):
            path = groups.namespace_of(type(self._arguments)).get(name)
        if path is None:
            return getattr(self._arguments, name, MISSING)
        group, *parts = path.split(".")
        bag = self._context.config_bag(group)
        for part in (*parts, name):
            bag = getattr(bag, part)
        return bag

    def unlike_default(self) -> Mapping[str, Any]:
        """See `model.feature.Server.unlike_default`."""
        changed = {}
        kind: Any = type(self._arguments)
        for name, default in _defaults(kind):
            value = getattr(self._arguments, name, default)
            if value is not default and value != default:
                changed[name] = value
        return changed


def published() -> Server:
    """What this process has published so far; if that can't be read, everything counts as on.

    While a module that publishes is still being imported, nothing has been published.
    """
    try:
        if is_loaded(CONTEXT) and _publishing_class() is not None:
            context = sys.modules[CONTEXT].get_context()
            return Published(context.server_args, context)
        arguments = sys.modules[ARGUMENTS] if is_loaded(ARGUMENTS) else None
        if hasattr(arguments, "get_global_server_args"):
            return Published(arguments.get_global_server_args())  # type: ignore[union-attr]
    except ValueError:  # nothing yet
        pass
    except Exception as error:
        return _unreadable(error)
    return Published()


def _unreadable(error: Exception) -> Server:
    """A server of which each feature counts as on, and each use as unknown."""

    def read(_: str = "") -> Any:
        raise error

    return cast("Server", SimpleNamespace(read=read, unlike_default=read))


class Gatekeeper:
    """Keeps patches off servers that do not need them or use features they were not proven with.

    `setups.ruling` has the rule. It is applied before a patch goes live, after each publication of
    the server's arguments, and at each check, because sglang resolves some arguments later.
    `publishing` watches for publications.
    """

    def __init__(self, members: Mapping[str, Member], publishing: Watched) -> None:
        self._members = members
        self._publishing = publishing
        self._had: frozenset[str] = frozenset()

    def rule(self, members: Collection[Member]) -> Iterator[tuple[Member, Ruling | None]]:
        """Each patch, and why this server keeps it off; None if it doesn't.

        While any thread is publishing there is none: it is asked again when that call has returned.
        """
        if not members or self._publishing.is_under_way():
            return
        # A draft model's arguments are published for a moment in between. They must not make a
        # patch of the main model "not needed": what the server ever had, it does not lack.
        setup = setups.FEATURES.setup(published())
        self._had |= setup.having
        lacking = {use: why for use, why in setup.lacking.items() if use not in self._had}
        setup = dataclasses.replace(setup, lacking=lacking)
        for member in members:
            yield member, self._rule(member, setup)

    def _rule(self, member: Member, setup: Setup) -> Ruling | None:
        needed = [self._members[name] for name in member.patch.requires]
        # Those that apply here, so not those that are built in upstream.
        acting = [each.patch for each in needed if each.verdict and each.verdict.word == "applies"]
        patch = member.patch.proven_in(member.variant)
        return ruling(patch, acting, setup, self._lacking_record)

    def _lacking_record(self, patch: Patch) -> str | None:
        verdict = self._members[patch.id].verdict
        assert verdict is not None  # it applies, or it would not be ruled
        return verified.lacking(verdict)


def publisher() -> tuple[Any, str]:
    """The owner and the name of the function that publishes arguments."""
    context_class = _publishing_class()
    if context_class is not None:
        return context_class, "set_server_args"
    return sys.modules[ARGUMENTS], "set_global_server_args_for_scheduler"


def _publishing_class() -> Any:
    """The ``RuntimeContext`` class that holds arguments; None up to 0.5.14, whose has none."""
    context_class = getattr(sys.modules.get(CONTEXT), "RuntimeContext", None)
    return context_class if hasattr(context_class, "set_server_args") else None


@functools.cache
def _defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    """``(name, default)`` of each field of a dataclass or msgspec struct that has a default."""
    fields: Any = ()
    none: Any = dataclasses.MISSING
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
    elif hasattr(kind, "__struct_fields__"):
        msgspec: Any = sys.modules["msgspec"]
        fields, none = msgspec.structs.fields(kind), msgspec.NODEFAULT
    return tuple(
        (each.name, each.default_factory() if each.default is none else each.default)
        for each in fields
        if each.default is not none or each.default_factory is not none
    )
