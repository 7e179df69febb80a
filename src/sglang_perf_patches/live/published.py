"""What this process has imported of sglang, and which server it runs, as sglang published that.

Nothing of sglang is imported here. Where the arguments are depends on the release:

- up to 0.5.14, a function of ``server_args`` stores the resolved ``ServerArgs``;
- from 0.5.15 on, a ``RuntimeContext`` holds them;
- from 0.5.17 on, that context also holds resolved values in groups. A group's value wins over the
  argument of the same name.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import wrapt

from ..model.computed import RESOLVED, of_model
from ..model.feature import MISSING, Server
from .switch import Function, board, exchange, place_in, raw
from .threads import runs_anywhere
from .wrappers import is_function, underlying

ARGUMENTS = "sglang.srt.server_args"
CONTEXT = "sglang.srt.runtime_context"
UTILS = "sglang.srt.utils"
MODULES = (UTILS, ARGUMENTS, CONTEXT)
"""The modules that publish the server's arguments or name its platform."""

# Process-wide, because a hook registered with wrapt can't be removed.
_awaited: set[str] = set()
_finished: dict[str, ModuleType] = {}
_listening: list[Callable[[], None]] = []  # at most one


def is_ready(name: str) -> bool:
    """Whether a module has been executed; its import may still be on the stack."""
    module = sys.modules.get(name)
    is_executing = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return module is not None and (not is_executing or _finished.get(name) is module)


def wait_for(names: Iterable[str], on_import: Callable[[], None]) -> None:
    """Await these modules, as far as they are not imported yet. Idempotent.

    When the import of any awaited module ends, the thread that imported it calls `on_import`, until
    `stop_waiting`.
    """
    _listening[:] = [on_import]
    for name in names:
        # wrapt would call at once for a module that is still executing. Such a module is
        # covered by the next import that ends, or by the next check.
        if name not in sys.modules and name not in _awaited:
            _awaited.add(name)
            wrapt.register_post_import_hook(_finish, name)


def stop_waiting() -> None:
    """Stop calling what `wait_for` was called with last."""
    _listening.clear()
    _finished.clear()


def _finish(module: ModuleType) -> None:
    _awaited.discard(module.__name__)  # wrapt calls once; register again on a reimport
    if _listening:
        _finished[module.__name__] = module
    for on_import in list(_listening):
        on_import()


class Watched:
    """Calls `after` whenever a stock function has returned, in the thread that called it."""

    def __init__(self, after: Callable[[], None]) -> None:
        self._after = after
        self._place: Function | None = None

    def hook(self, owner: Any, name: str) -> None:
        """Hook the function ``owner.name``, unless a thread is inside it. Idempotent."""
        function = underlying(raw(owner, name))
        # Another plugin's object stays: the checks once a second see its effects.
        if self._place is None and is_function(function):
            self._place = place_in(function)
        if self._place is not None and self._place not in board.now:
            exchange({self._place: [self._around]})

    def unhook(self) -> bool:
        """Remove the hook; False if a thread is inside it."""
        place = self._place
        if place is not None and place in board.now and not exchange({place: []}):
            return False
        if place is not None:
            place.forget(self._around)
        return True

    def is_under_way(self) -> bool:
        """Whether any thread is inside a call of the function."""
        # Read from the stacks: an interruption could leave a counter wrong.
        return self._place is not None and runs_anywhere([self._place.code])

    def _around(self, inner: Any) -> Any:
        def calls(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            self._after()
            return result

        return calls


@dataclasses.dataclass(frozen=True)
class Published:
    """A `model.feature.Server`: the ``ServerArgs`` that this process has published.

    Before it has published any, only the platform can be read.
    """

    arguments: Any = None
    context: Any = None  # the ``RuntimeContext`` that holds them, if the release has one

    def read(self, name: str) -> Any:
        """See `model.feature.Server.read`.

        Besides arguments it reads ``is_…`` (the functions of ``sglang.srt.utils``), ``model.…``
        (see `of_model`), those of `RESOLVED`, ``gpu.capability``, ``GROUP.NAME`` (what the
        context computes) and names in capitals (environment variables).
        """
        if name.startswith("is_") and is_ready(UTILS) and hasattr(sys.modules[UTILS], name):
            return bool(getattr(sys.modules[UTILS], name)())
        if self.arguments is None:
            return MISSING
        if name.isupper():
            return os.environ.get(name)
        if name.startswith("model."):
            return of_model(self.arguments, name.partition(".")[2])
        if name == "gpu.capability":
            from .. import gpu  # a server without a GPU never asks

            return gpu.capability()
        if name in RESOLVED:
            return RESOLVED[name](self.read)
        if "." in name:
            group, name = name.split(".")
            of_group = getattr(self.context, group, None)
            return getattr(of_group, name) if hasattr(type(of_group), name) else MISSING
        groups: Any = sys.modules.get("sglang.srt.arg_groups.arg_utils")
        path = None
        if self.context is not None and hasattr(groups, "namespace_of"):
            path = groups.namespace_of(type(self.arguments)).get(name)
        if path is None:
            return getattr(self.arguments, name, MISSING)
        group, _, inside = f"{path}.{name}".partition(".")
        return operator.attrgetter(inside)(self.context.config_bag(group))

    def unlike_default(self) -> Mapping[str, Any]:
        """See `model.feature.Server.unlike_default`."""
        changed = {}
        kind: Any = type(self.arguments)
        for name, default in _defaults(kind):
            value = getattr(self.arguments, name, default)
            if value is not default and value != default:
                changed[name] = value
        return changed


def published() -> Server:
    """What this process has published so far; if that can't be read, everything counts as on.

    While a module that publishes is still being imported, nothing has been published.
    """
    try:
        if is_ready(CONTEXT) and _publishing_class() is not None:
            context = sys.modules[CONTEXT].get_context()
            return Published(context.server_args, context)
        arguments = sys.modules[ARGUMENTS] if is_ready(ARGUMENTS) else None
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
