"""What an activation waits for: imports that end, and the hooks of other plugins.

sglang's ``HookRegistry.apply_hooks`` runs after every plugin has been loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import wrapt

from ..model.patch import Variant, module_of, qualname_of
from .board import Board
from .swap import Layer, Slot
from .wrappers import describe, raw

HOOKS = "sglang.srt.plugins.hook_registry"
"""The module of the registry."""

_awaited: set[str] = set()  # of this process: wrapt keeps for ever what is registered with it
_listening: list[Imports] = []


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
        self._on_import(module.__name__)


def _finish(module: ModuleType) -> None:
    _awaited.discard(module.__name__)  # wrapt calls once; register again on a reimport
    for imports in list(_listening):
        imports.finish(module)


class Neighbours:
    """Two calls of ours around ``apply_hooks``, once its module has been imported."""

    def __init__(
        self, board: Board, before: Callable[[Any], None], after: Callable[[], None]
    ) -> None:
        """Change nothing yet.

        Args:
            board: what this process shows.
            before: called with the registry, before every plugin's hooks are applied.
            after: called when they have been.
        """
        self._board = board
        self._before = before
        self._after = after
        self._slot: Slot | None = None

    def watch(self, imports: Imports) -> None:
        """Be there from now on, if the registry is; may be repeated."""
        if self._slot is not None or not imports.is_ready(HOOKS):
            return
        registry: Any = sys.modules[HOOKS].HookRegistry
        slot = Slot(self._board, registry, "apply_hooks", raw(registry, "apply_hooks"))
        self._slot = slot
        self._board.slots[id(slot.owner), slot.name] = slot
        slot.show_alone([Layer("", lambda inner: self._around(registry, inner))])
        slot.settle()

    def leave(self) -> None:
        """Be shown no longer; memory is to be settled after that."""
        if self._slot is not None:
            self._slot.show_alone([])
            self._slot.forget("")

    def _around(self, registry: Any, inner: Any) -> Any:
        def around(wrapped: Callable[..., Any], _: Any, args: Any, kwargs: Any) -> Any:
            self._before(registry)
            result = wrapped(*args, **kwargs)
            self._after()
            return result

        return wrapt.FunctionWrapper(inner, around)


def to_be_replaced(variant: Variant, registry: Any) -> Iterator[tuple[str, str]]:
    """What registered REPLACE hooks will take of a variant's definitions, with whose they are."""
    replaced = dict(_replacements(registry))
    for reference in variant.targets + variant.adds + variant.depends:
        dotted = f"{module_of(reference)}.{qualname_of(reference)}"
        for target, whose in replaced.items():
            if dotted == target or dotted.startswith(f"{target}."):
                yield reference, whose
                break


def _replacements(registry: Any) -> Iterator[tuple[str, str]]:
    for target, hooks in dict(registry._hooks).items():
        for kind, hook, hook_source in hooks:
            if kind.name == "REPLACE":
                distribution = getattr(hook_source, "dist_name", None)
                whose = describe(hook)
                yield target, f"{whose} (plugin of {distribution})" if distribution else whose
