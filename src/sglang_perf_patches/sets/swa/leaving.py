"""What keeps a swa patch on while requests run: what only its own code can handle."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Held:
    """Things that only a patch's code can serve; each is forgotten once it is gone or has ended.

    Weak references: whatever ends a request (its last token, an abort, a failed transfer, a queue
    that is cleared) need not tell.
    """

    def __init__(self) -> None:
        self._held: dict[int, weakref.ref[Any]] = {}

    def add(self, thing: Any) -> None:
        """Hold an object until it has no other holder, or until its ``finished()`` is true."""
        key = id(thing)
        self._held[key] = weakref.ref(thing, lambda _: self._held.pop(key, None))

    def none(self) -> bool:
        """Whether all are gone; any thread may ask."""
        return all(_is_over(reference()) for reference in list(self._held.values()))


LONG = Held()
"""Requests that may become longer than the sliding-window pool: stock would never admit them, nor
resume them after a retraction, and keeps what is behind them waiting."""

COPIES = Held()
"""Copies of retracted requests that stock's code can't load."""

WAITS_FOR = (
    "all requests have ended that stock's sliding-window pool can't hold at full length, and all "
    "retracted ones are resumed whose copy stock can't load"
)


def is_idle() -> bool:
    """Whether the rule for tails may be removed: stock can continue with every request."""
    return LONG.none() and COPIES.none()


def keep_limit(queue: Any, longest: int, stock: int) -> None:
    """Let `longer` accept prompts of up to `longest` tokens.

    The queue keeps `stock`, the most once the patch is off.
    """
    queue._swa_longest, queue.max_total_num_tokens = longest, stock


@contextmanager
def longer(queue: Any) -> Iterator[None]:
    """Within this context stock's check for the longest prompt has the limit of `keep_limit`."""
    stock = queue.max_total_num_tokens
    queue.max_total_num_tokens = vars(queue).get("_swa_longest", stock)
    try:
        yield
    finally:
        queue.max_total_num_tokens = stock


def hold_if_long(queue: Any, req: Any) -> None:
    """Hold a request that has been accepted, if stock could not serve it to its end."""
    # Later max_new_tokens is cut down to the context's length; None means as much.
    most = req.sampling_params.max_new_tokens
    if most is None or len(req.origin_input_ids) + most > queue.max_total_num_tokens:
        LONG.add(req)


def _is_over(thing: Any) -> bool:
    return thing is None or (hasattr(thing, "finished") and bool(thing.finished()))
