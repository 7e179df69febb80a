"""Which modules have been imported completely, and a call when another one has."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import wrapt


def is_loaded(name: str) -> bool:
    """Whether a module has been imported and is not still being executed."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return module is not None and not getattr(spec, "_initializing", False)


class Imports:
    """The imports that an activation waits for."""

    def __init__(self, on_import: Callable[[str], None]) -> None:
        """Call `on_import` with each awaited module's name, in the thread that imported it."""
        self._on_import = on_import
        self._awaited: set[str] = set()
        self._finished: dict[str, Any] = {}

    def wait_for(self, names: Iterable[str]) -> None:
        """Ask, once, to be called for those that are not imported yet."""
        for name in dict.fromkeys(names):
            # For a module that is still executing, wrapt would call at once. The next finished
            # module, or the next check, covers such a module.
            if name not in sys.modules and name not in self._awaited:
                wrapt.register_post_import_hook(self._finish, name)
                self._awaited.add(name)

    def is_ready(self, name: str) -> bool:
        """Whether a module has finished, though its own import may still be on the stack."""
        module = sys.modules.get(name)
        return module is not None and (self._finished.get(name) is module or is_loaded(name))

    def _finish(self, module: ModuleType) -> None:
        self._finished[module.__name__] = module
        self._awaited.discard(module.__name__)  # wrapt calls once; register again on a reimport
        self._on_import(module.__name__)
