"""What this process has published of its server, in each release's way; imports nothing of sglang.

Up to 0.5.14 a function of ``server_args`` notes the arguments, which ``ServerArgs`` has resolved.
From 0.5.15 on a ``RuntimeContext`` holds them, and from 0.5.17 on also, in groups, what was
resolved of them: what a group has counts, whatever was given.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..model.feature import MISSING, Server
from . import model_config
from .board import Board, runs_elsewhere, runs_here
from .imports import Imports, is_loaded
from .swap import Layer, Slot
from .wrappers import is_function, raw

ARGUMENTS = "sglang.srt.server_args"
CONTEXT = "sglang.srt.runtime_context"
UTILS = "sglang.srt.utils"
MODULES = (UTILS, ARGUMENTS, CONTEXT)
"""Whose import tells more of the server, or lets it be published."""

_PUBLISH = "set_global_server_args_for_scheduler"


class Published:
    """The server of this process; before it is published, the platform alone."""

    def __init__(self, arguments: Any = None, context: Any = None) -> None:
        """Read from these.

        Args:
            arguments: the ``ServerArgs`` that were published.
            context: the ``RuntimeContext`` that holds them, where the release has one.
        """
        self._arguments = arguments
        self._context = context

    def read(self, name: str) -> Any:
        """As `model.feature.Server.read`.

        Also ``is_…`` of ``sglang.srt.utils``, ``model.…`` (`model_config`), ``gpu.capability``,
        and, in capitals, the environment.
        """
        if name.startswith("is_") and is_loaded(UTILS) and hasattr(sys.modules[UTILS], name):
            return bool(getattr(sys.modules[UTILS], name)())
        if self._arguments is None:
            return MISSING
        if name.isupper():
            return os.environ.get(name)
        if name.startswith("model."):
            return model_config.read(self._arguments, name.partition(".")[2])
        if name == "gpu.capability":
            from . import gpu  # a server without a GPU never asks

            return gpu.capability()
        if "." in name:
            return self._derived(*name.split("."))
        kind = type(self._arguments)
        path = _namespaces(kind).get(name) if self._context is not None else None
        if path is None:
            return getattr(self._arguments, name, MISSING)
        group, *parts = path.split(".")
        bag = self._context.config_bag(group)
        for part in parts:
            bag = getattr(bag, part)
        return getattr(bag, name)

    def unlike_default(self) -> Mapping[str, Any]:
        """As `model.feature.Server.unlike_default`."""
        changed = {}
        kind: Any = type(self._arguments)
        for name, default in _defaults(kind):
            value = getattr(self._arguments, name, default)
            if value is not default and value != default:
                changed[name] = value
        return changed

    def _derived(self, group: str, name: str) -> Any:
        """What the release computes of arguments: in a group of the context, not in a group's bag.

        `MISSING` in a release that has no such name.
        """
        group_of_context = getattr(self._context, group, None)
        return getattr(group_of_context, name) if hasattr(type(group_of_context), name) else MISSING


def published() -> Server:
    """What this process has published so far; where that fails, a server with everything on.

    Another thread may be importing what publishes: nothing has been published by then.
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
        return _Unreadable(error)
    return Published()


class _Unreadable:
    """A server of which nothing can be read, so that everything counts as on."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def read(self, name: str) -> Any:
        raise self._error

    def unlike_default(self) -> Mapping[str, Any]:
        raise self._error


class Watch:
    """A call of ours after each publication, once what publishes has been imported."""

    def __init__(self, board: Board, after: Callable[[], None]) -> None:
        """Change nothing yet; `after` is called when something has been published."""
        self._board = board
        self._after = after
        self._slot: Slot | None = None

    def begin(self, imports: Imports) -> None:
        """Be there from now on, if what publishes is; may be repeated."""
        if self._slot is not None or not imports.is_ready(ARGUMENTS):
            return
        owner: Any = _publishing_class()
        name = "set_server_args"
        if owner is None:
            owner, name = sys.modules[ARGUMENTS], _PUBLISH
        held = raw(owner, name)
        if not is_function(held):
            return  # another plugin's: what is published shows at the next look
        slot = Slot(self._board, owner, name, held, None if isinstance(owner, type) else held)
        self._slot = slot
        self._board.slots[id(owner), name] = slot
        layer = Layer("", self._around)
        slot.made_of([layer])
        slot.place()
        slot.show_alone([layer])

    def leave(self) -> None:
        """Be shown no longer; memory is to be settled after that."""
        if self._slot is not None and self._slot.layers:
            self._slot.show_alone([])
            self._slot.forget("")

    def is_publishing(self) -> bool:
        """Whether any thread publishes at the moment: what is held is not whole yet.

        The threads tell, not a count, which an interruption could leave wrong.
        """
        codes = (_publishing.__code__,)
        return runs_here(codes) or runs_elsewhere(codes)

    def _around(self, inner: Any) -> Any:
        def publish(*args: Any, **kwargs: Any) -> Any:
            result = _publishing(inner, args, kwargs)
            self._after()
            return result

        return publish


def _publishing(inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Publish; its frame is what `Watch.is_publishing` looks for."""
    return inner(*args, **kwargs)


def _publishing_class() -> Any:
    """The class of the context that holds a server's arguments; None up to 0.5.14.

    0.5.14 has a context, though without them.
    """
    context_class = getattr(sys.modules.get(CONTEXT), "RuntimeContext", None)
    return context_class if hasattr(context_class, "set_server_args") else None


def _namespaces(kind: type) -> Mapping[str, str]:
    """Of each argument the path of its group in the context; empty before there were groups."""
    module = sys.modules.get("sglang.srt.arg_groups.arg_utils")
    return module.namespace_of(kind) if hasattr(module, "namespace_of") else {}  # type: ignore[union-attr]


@functools.cache
def _defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    """The fields of a record that have a default, with it."""
    if dataclasses.is_dataclass(kind):
        return tuple(_with_default(dataclasses.fields(kind), dataclasses.MISSING))
    if hasattr(kind, "__struct_fields__"):
        msgspec: Any = sys.modules["msgspec"]
        return tuple(_with_default(msgspec.structs.fields(kind), msgspec.NODEFAULT))
    return ()


def _with_default(fields: Iterable[Any], none: Any) -> Iterable[tuple[str, Any]]:
    for each in fields:
        if each.default is not none:
            yield each.name, each.default
        elif each.default_factory is not none:
            yield each.name, each.default_factory()
