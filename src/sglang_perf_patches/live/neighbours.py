"""Other plugins: the moment when sglang applies their hooks, and what those will replace.

sglang's ``HookRegistry.apply_hooks`` runs after every plugin has been loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import wrapt

from .board import Board
from .identity import raw
from .swap import Change, Layer, Slot
from .wrappers import describe

HOOKS = "sglang.srt.plugins.hook_registry"
"""The module of the registry."""


def around_apply_hooks(
    board: Board, before: Callable[[Any], None], after: Callable[[], None]
) -> Change:
    """The change that has two calls of ours around ``apply_hooks``; not shown yet.

    Args:
        board: where it is to be shown.
        before: called with the registry, before every plugin's hooks are applied.
        after: called when they have been.
    """
    registry: Any = sys.modules[HOOKS].HookRegistry

    def around(wrapped: Callable[..., Any], _: Any, args: Any, kwargs: Any) -> Any:
        before(registry)
        result = wrapped(*args, **kwargs)
        after()
        return result

    slot = Slot(board, registry, "apply_hooks", raw(registry, "apply_hooks"))
    layer = Layer(0, "", lambda inner: wrapt.FunctionWrapper(inner, around))
    return slot.with_layers([layer])


def replacements(registry: Any) -> Iterator[tuple[str, str]]:
    """Dotted names that registered REPLACE hooks will take, with whose they are."""
    for target, hooks in dict(registry._hooks).items():
        for kind, hook, hook_source in hooks:
            if kind.name == "REPLACE":
                distribution = getattr(hook_source, "dist_name", None)
                whose = describe(hook)
                yield target, f"{whose} (plugin of {distribution})" if distribution else whose
