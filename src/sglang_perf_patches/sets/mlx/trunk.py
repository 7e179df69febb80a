"""A model's trunk, the part before its head, and what replaces it for one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

TRUNK = "model"  # the trunk's attribute name in almost all of mlx-lm's models


def owner_of_trunk(model: Any) -> Any:
    """The module that applies the head to the trunk: a model, or its language model; or None."""
    owner = model
    while isinstance(owner, dict):
        if callable(owner.get(TRUNK)):
            return owner
        owner = owner.get("language_model")
    return None


def logits_of(output: Any) -> Any:
    """The logits of what a model returns, which may be their tuple with something else."""
    return output[0] if isinstance(output, tuple) else output


@contextmanager
def cutting(owner: Any, cut: Callable[[Any], Any], known: Any = None) -> Iterator[CutTrunk]:
    """Within, a head computes only what is cut out of the hidden states; `known` are reused."""
    trunk = owner[TRUNK]
    replacing = CutTrunk(trunk, cut, known)
    dict.__setitem__(owner, TRUNK, replacing)  # a module of mlx.nn is a dictionary of its parts
    try:
        yield replacing
    finally:
        dict.__setitem__(owner, TRUNK, trunk)


class CutTrunk:
    """Replaces a model's trunk; its attributes are the trunk's, whose embedding may be the head."""

    def __init__(self, trunk: Any, cut: Callable[[Any], Any], known: Any) -> None:
        self._trunk, self._cut = trunk, cut
        self._known = known  # hidden states of an earlier call: the trunk does not run again
        self.hidden: Any = None  # the states of all positions, (rows, tokens, hidden)
        self.can_cut = True  # the trunk returned hidden states, or was not called

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the trunk, and cut."""
        hidden = self._trunk(*args, **kwargs) if self._known is None else self._known
        if getattr(hidden, "ndim", 0) != 3:
            self.can_cut = False
            return hidden
        self.hidden = hidden
        return self._cut(hidden)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trunk, name)
