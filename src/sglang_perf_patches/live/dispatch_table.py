"""One table of the functions that run in stock's places, exchanged by one assignment.

In each place stands a *forwarder*: it calls the function that the table holds at that moment (see
`trampoline`), which is stock's own at first. ``DispatchTable.now = table`` changes every place of a
patch at once, so a thread sees all of a patch or nothing.

A call that has begun would continue with the old function while the calls below it use the new
ones. So the table is exchanged only while no thread is inside a function that changes: see
`at_rest`. If one is, nothing happens and the caller tries again later. No call of sglang ever
waits. A function that ``torch.compile`` has inlined has no frame, so such a call can't be seen: it
ends with the code that was compiled.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain, islice, repeat, takewhile, tee
from operator import attrgetter, itemgetter
from types import CodeType, FrameType
from typing import Any

_INTERVAL_S = 0.005
_GIVE_UP_S = 0.0001
_TRIES = 50
_COMPILER = "torch._dynamo.convert_frame"


class Table:
    """The function of each place, as an attribute under the place's key.

    Attributes:
        shown: `swap.Slot` → the `swap.Change` that it shows.
        patches: ids of the patches that are on.
    """

    def __init__(self) -> None:
        self.shown: dict[Any, Any] = {}
        self.patches: frozenset[str] = frozenset()

    def replaced(
        self,
        shown: Mapping[Any, Any],
        functions: Mapping[str, Callable[..., Any]],
        patches: frozenset[str],
    ) -> Table:
        """A copy with other changes and functions in some places, and these patches on."""
        table = Table()
        table.__dict__.update(self.__dict__)
        table.__dict__.update(functions)
        table.shown = {**self.shown, **shown}
        table.patches = patches
        return table


class DispatchTable:
    """The present table, and the places that it has functions for.

    Attributes:
        now: the current `Table`.
        slots: every `swap.Slot` that was ever used, by ``(id(owner), name)``.
    """

    def __init__(self) -> None:
        self.now: Any = Table()
        self.slots: dict[tuple[int, str], Any] = {}


dispatch = DispatchTable()
"""The dispatch table of this process."""


def at_rest(
    codes: Collection[CodeType], act: Callable[[], None], is_due: Callable[[], bool] = lambda: True
) -> bool:
    """Act if no other thread is inside one of `codes`, before any other thread can enter one.

    Generators and coroutines count only while they run. While another thread compiles with torch,
    nothing is done: the compiler records what it reads and compares it at its end.

    Args:
        codes: the code objects; with none, no thread needs checking.
        act: the action, as quick as an assignment.
        is_due: whether it may be done; called at that moment.

    Returns:
        whether it was done. Without a GIL it is not, unless this is the only thread.
    """
    if not codes or is_alone():
        if is_due():
            act()
            return True
        return False
    if not has_gil():
        return False

    # A thread that waits for the GIL requests it only after a whole switch interval in which no
    # other thread got it. So this thread gives the GIL up, takes it again, and has at least one
    # interval in which it can check all threads and act without interruption. A host may have set
    # a shorter interval, which would not be enough: it is raised to Python's own for the attempt.
    interval, done = sys.getswitchinterval(), None
    try:
        sys.setswitchinterval(max(interval, _INTERVAL_S))
        for _ in range(_TRIES):
            done = _in_one_slice(
                lambda: not (runs_elsewhere(codes) or compiles_elsewhere()) and is_due(), act
            )
            if done is not None:
                break
    finally:
        sys.setswitchinterval(interval)
    return bool(done)


def _in_one_slice(is_safe: Callable[[], bool], act: Callable[[], None]) -> bool | None:
    """Give the GIL up, then check and act before another thread gets it.

    Returns:
        whether it acted; None if the check took so long that another thread may have run since.
    """
    time.sleep(_GIVE_UP_S)
    with _without_collections():
        began = time.perf_counter()
        if not is_safe():
            return False
        if time.perf_counter() - began > _INTERVAL_S / 2:
            return None
        act()
        return True


def has_gil() -> bool:
    """Whether this Python runs one thread at a time."""
    ask: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)
    return ask is None or ask()


def is_alone() -> bool:
    """Whether this process has no other Python thread."""
    return len(sys._current_frames()) == 1


def runs_here(codes: Collection[CodeType]) -> bool:
    """Whether the calling thread is executing one of `codes`, or something that it called."""
    identities = _identities(codes)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if id(frame.f_code) in identities:
            return True
        frame = frame.f_back
    return False


def runs_elsewhere(codes: Collection[CodeType]) -> bool:
    """Whether another thread executes one of `codes`, or something that it called.

    The answer is true only while this thread keeps the GIL, from before the call on.
    """
    identities, own = _identities(codes), threading.get_ident()
    return any(
        not identities.isdisjoint(map(id, stack)) for thread, stack in _stacks() if thread != own
    )


def compiles_elsewhere() -> bool:
    """Whether another thread is tracing for ``torch.compile``."""
    file = getattr(sys.modules.get(_COMPILER), "__file__", None)
    own = threading.get_ident()
    return any(
        code.co_filename == file
        for thread, stack in (_stacks() if file else ())
        for code in stack
        if thread != own
    )


def _stacks() -> tuple[tuple[int, tuple[CodeType, ...]], ...]:
    """Of each thread its number, and the code objects that it executes, innermost first."""
    with _without_collections():
        return _walked()


def _walked() -> tuple[tuple[int, tuple[CodeType, ...]], ...]:
    """See `_stacks`; while it runs, nothing may give the GIL up.

    A frame that has ended by then can point at freed memory: on 3.11, with torch, that was seen to
    end processes. So it is one call into C. A loop in Python over ``f_back`` gives the GIL up in
    between if it takes long. So does a finaliser, and up to 3.11 garbage is collected inside of C.
    """
    items = map(dict.items, islice(iter(sys._current_frames, None), 1))
    threads, innermost = tee(chain.from_iterable(items))
    backwards = map(chain, zip(map(itemgetter(1), innermost)), repeat(repeat("f_back")))
    frames = map(partial(takewhile, bool), map(accumulate, backwards, repeat(getattr)))
    codes = map(tuple, map(partial(map, attrgetter("f_code")), frames))
    return tuple(zip(map(itemgetter(0), threads), codes, strict=True))


@contextmanager
def _without_collections() -> Iterator[None]:
    """Keep garbage from being collected, as a finaliser may give the GIL up."""
    collects = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if collects:
            gc.enable()


def _identities(codes: Collection[CodeType]) -> set[int]:
    # By identity: code objects of equal content are equal.
    return {id(code) for code in codes}
