"""What an activation waits for: imports that end, and stock's calls after which it looks again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import wrapt

from .dispatch_table import DispatchTable, runs_elsewhere, runs_here
from .swap import Layer, Slot
from .wrappers import is_function, raw, underlying

_awaited: set[str] = set()  # of this process: wrapt keeps for ever what is registered with it
_listening: list[Imports] = []


def is_loaded(name: str) -> bool:
    """Whether a module has been imported and is not still being executed."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return module is not None and not getattr(spec, "_initializing", False)


class Imports:
    """The imports that an activation waits for."""

    def __init__(self, on_import: Callable[[], None]) -> None:
        """Call `on_import` when an awaited module's import ends, in the thread that imported it."""
        self._on_import = on_import
        self._finished: dict[str, Any] = {}

    def wait_for(self, names: Iterable[str]) -> None:
        """Be called for those that are not imported yet; may be repeated."""
        if self not in _listening:
            _listening.append(self)
        for name in dict.fromkeys(names):
            # For a module that is still executing, wrapt would call at once. The next finished
            # module, or the next check, covers such a module.
            if name not in sys.modules and name not in _awaited:
                _awaited.add(name)
                wrapt.register_post_import_hook(_finish, name)

    def leave(self) -> None:
        """Be called no more."""
        if self in _listening:
            _listening.remove(self)

    def is_ready(self, name: str) -> bool:
        """Whether a module has finished, though its own import may still be on the stack."""
        module = sys.modules.get(name)
        return module is not None and (self._finished.get(name) is module or is_loaded(name))

    def finish(self, module: ModuleType) -> None:
        """A module's import ends."""
        self._finished[module.__name__] = module
        self._on_import()


def _finish(module: ModuleType) -> None:
    _awaited.discard(module.__name__)  # wrapt calls once; register again on a reimport
    for imports in list(_listening):
        imports.finish(module)


class Watched:
    """A call of ours after each call of a stock function, in whatever thread."""

    def __init__(self, dispatch: DispatchTable, after: Callable[[], None]) -> None:
        """Change nothing yet; `after` is called when a call has returned."""
        self._dispatch = dispatch
        self._after = after
        self._slot: Slot | None = None

    def begin(self, owner: Any, name: str) -> None:
        """Be there from now on, at this attribute; may be repeated."""
        held = raw(owner, name)
        if self._slot is not None or not is_function(underlying(held)):
            return  # where it is another plugin's, the next look sees what it has done
        slot = Slot(
            self._dispatch, owner, name, held, held if isinstance(owner, ModuleType) else None
        )
        self._slot = self._dispatch.slots[id(owner), name] = slot
        layer = Layer("", self._around)
        slot.made_of([layer])
        slot.place()
        slot.show_alone([layer])

    def leave(self) -> None:
        """Be shown no longer; memory is to be settled after that."""
        if self._slot is not None and self._slot.layers:
            self._slot.show_alone([])
            self._slot.forget("")

    def is_under_way(self) -> bool:
        """Whether any thread is in such a call at the moment.

        The threads tell, not a count, which an interruption could leave wrong.
        """
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
    """Call; its frame is what `Watched.is_under_way` looks for."""
    return function(*args, **kwargs)
