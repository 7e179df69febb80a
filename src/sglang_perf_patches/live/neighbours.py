"""Other plugins: the moment when sglang applies their hooks, and what those will replace.

sglang's ``HookRegistry.apply_hooks`` runs after every plugin has been loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import wrapt

from ..model.patch import Variant, module_of, qualname_of
from .board import Board
from .identity import raw
from .imports import Imports
from .swap import Layer, Slot
from .wrappers import describe

HOOKS = "sglang.srt.plugins.hook_registry"
"""The module of the registry."""


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
        change = slot.with_layers([Layer(0, "", lambda inner: self._around(registry, inner))])
        self._slot = slot
        self._board.slots[id(slot.owner), slot.name] = slot
        slot.show_alone(change)
        slot.settle()

    def leave(self) -> None:
        """Be shown no longer; memory is to be settled after that."""
        if self._slot is not None:
            self._slot.show_alone(self._slot.without(frozenset({""})))

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
