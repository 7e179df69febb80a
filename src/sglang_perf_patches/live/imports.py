"""The events that trigger a check: the end of an import, and calls of certain stock functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import wrapt

from .dispatch_table import dispatch, runs_elsewhere, runs_here
from .swap import Layer, Slot
from .wrappers import is_function, raw, underlying

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

    Args:
        names: the modules.
        on_import: called when the import of any awaited module ends, in the thread that imported
            it, until `stop_waiting`.
    """
    if on_import not in _listening:
        _listening.append(on_import)
    for name in dict.fromkeys(names):
        # wrapt would call at once for a module that is still executing. Such a module is
        # covered by the next import that ends, or by the next check.
        if name not in sys.modules and name not in _awaited:
            _awaited.add(name)
            wrapt.register_post_import_hook(_finish, name)


def stop_waiting(on_import: Callable[[], None]) -> None:
    """Call it no longer."""
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
        self._slot: Slot | None = None

    def begin(self, owner: Any, name: str) -> None:
        """Hook the function ``owner.name``. Idempotent."""
        held = raw(owner, name)
        if self._slot is not None or not is_function(underlying(held)):
            return  # another plugin's object: the checks once a second see its effects
        slot = Slot(owner, name, held, held if isinstance(owner, ModuleType) else None)
        self._slot = dispatch.slots[id(owner), name] = slot
        layer = Layer("", self._around)
        slot.made_of([layer])
        slot.show_alone([layer])

    def leave(self) -> None:
        """Remove the hook; `Registry.settle` then puts stock's function back."""
        if self._slot is not None and self._slot.layers:
            self._slot.show_alone([])
            self._slot.forget("")

    def is_under_way(self) -> bool:
        """Whether any thread is inside a watched call."""
        # Read from the stacks: an interruption could leave a counter wrong.
        codes = (_call.__code__,)
        return runs_here(codes) or runs_elsewhere(codes)

    def _around(self, inner: Any) -> Any:
        function = underlying(inner)

        def calls(*args: Any, **kwargs: Any) -> Any:
            result = _call(function, args, kwargs)
            self._after()
            return result

        return calls if function is inner else type(inner)(calls)


def _call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call the function in a frame that `Watched.is_under_way` can find."""
    return function(*args, **kwargs)
