"""The events that trigger a check: the end of an import, and calls of certain stock functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import wrapt

from .switch import Function, board, exchange, place_in, raw
from .threads import runs_anywhere
from .wrappers import is_function, underlying

# Process-wide, because a hook registered with wrapt can't be removed.
_awaited: set[str] = set()
_finished: dict[str, ModuleType] = {}
_listening: list[Callable[[], None]] = []


def is_loaded(name: str) -> bool:
    """Whether a module has been imported and is not still being executed."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return module is not None and not getattr(spec, "_initializing", False)


def is_ready(name: str) -> bool:
    """Whether a module has been executed; its import may still be on the stack."""
    module = sys.modules.get(name)
    return module is not None and (_finished.get(name) is module or is_loaded(name))


def wait_for(names: Iterable[str], on_import: Callable[[], None]) -> None:
    """Await these modules, as far as they are not imported yet. Idempotent.

    When the import of any awaited module ends, the thread that imported it calls `on_import`, until
    `stop_waiting`.
    """
    if on_import not in _listening:
        _listening.append(on_import)
    for name in names:
        # wrapt would call at once for a module that is still executing. Such a module is
        # covered by the next import that ends, or by the next check.
        if name not in sys.modules and name not in _awaited:
            _awaited.add(name)
            wrapt.register_post_import_hook(_finish, name)


def stop_waiting(on_import: Callable[[], None]) -> None:
    """Stop calling `on_import`."""
    if on_import in _listening:
        _listening.remove(on_import)
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
        place = self._place
        if place is not None and place not in board.now.values:
            exchange({place: place.made([self._around])}, board.now.patches)

    def unhook(self) -> bool:
        """Remove the hook; False if a thread is inside it."""
        place = self._place
        if place is None:
            return True
        if place in board.now.values and not exchange({place: place.stock}, board.now.patches):
            return False
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
