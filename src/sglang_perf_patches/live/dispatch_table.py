"""One table for all that this process shows in stock's places, exchanged in one step.

What stands in a stock place is a *forwarder*: it calls what the table shows at that moment (see
`trampoline`), stock's own function at first. So every place of a patch changes with one assignment,
``DispatchTable.now = table``, and a thread sees all of a patch or nothing.

A call that has begun continues with what it began with. So the table is exchanged only while no
thread is in a call that the exchange concerns: see `at_rest`. If a thread is, nothing happens, and
whoever asked tries again later. No call ever waits. A function that ``torch.compile`` has inlined
has no frame of its own: that call ends with what was compiled.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from types import CodeType, FrameType
from typing import Any

_INTERVAL_S = 0.005
_GIVE_UP_S = 0.0001
_TRIES = 50
_COMPILER = "torch._dynamo.convert_frame"


class Table:
    """What each place shows: a function, as an attribute, by the key of its place.

    Attributes:
        shown: what is noted of each place, by place.
        patches: ids of the patches that it shows.
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
        """A table with other notes and functions of some places, for these patches."""
        table = Table()
        table.__dict__.update(self.__dict__)
        table.__dict__.update(functions)
        table.shown = {**self.shown, **shown}
        table.patches = patches
        return table


class DispatchTable:
    """The table of this process.

    Attributes:
        now: what is shown, a `Table`.
        slots: every place in which something of ours stands or stood, by owner and name.
    """

    def __init__(self) -> None:
        self.now: Any = Table()
        self.slots: dict[tuple[int, str], Any] = {}

    def exchange(
        self,
        table: Table,
        codes: Collection[CodeType],
        is_due: Callable[[], bool] = lambda: True,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> bool:
        """Show another table, at a moment at which no other thread executes one of `codes`.

        The caller answers for its own thread.

        Args:
            table: made from `now`.
            codes: what a thread executes that is in a call that the exchange concerns.
            is_due: whether it may be done; asked while no thread is in such a call.
            before: puts the forwarders there.
            after: makes memory agree with what is shown.

        Returns:
            False if this was no such moment, or it is not due: nothing has changed.
        """

        def show() -> None:
            before()
            self.now = table  # one statement: an interruption leaves all of it or nothing
            after()

        return at_rest(codes, show, is_due)


def at_rest(
    codes: Collection[CodeType], act: Callable[[], None], is_due: Callable[[], bool] = lambda: True
) -> bool:
    """Act if no other thread executes one of `codes`, before any other thread can begin to.

    A thread that waits for the GIL asks for it only after a whole switch interval in which nobody
    else got it. So the interval is raised, the GIL given up, and after it was taken again a look at
    all threads and the act share one slice of it. A look that took half of the interval does not
    count, and is repeated. A generator and a coroutine count only while they run. While another
    thread compiles with torch, which notes what it has read and compares it at its end, nothing is
    done either.

    With Python's own interval of 5 ms, others wait only for the slice. Where the host has set
    a shorter interval, they take turns of 5 ms while the try takes the GIL again.

    Args:
        codes: the code objects; where there are none, no look is needed.
        act: what is to be done, as quickly as an assignment.
        is_due: whether it may be done, at that moment.

    Returns:
        whether it was done. Without a GIL nothing is, unless this is the only thread.
    """
    if not codes or is_alone():
        if is_due():
            act()
            return True
        return False
    if not has_gil():
        return False

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
    """Give the GIL up, then ask and act before another thread gets it again.

    Returns:
        whether it acted; None if the machine was too slow, so that nobody knows: try again.
    """
    collects = gc.isenabled()
    try:
        time.sleep(_GIVE_UP_S)
        gc.disable()  # a finaliser might give the GIL up
        began = time.perf_counter()
        if not is_safe():
            return False
        if time.perf_counter() - began > _INTERVAL_S / 2:
            return None
        act()
        return True
    finally:
        if collects:
            gc.enable()


def has_gil() -> bool:
    """Whether this Python runs one thread at a time."""
    ask: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)
    return ask is None or ask()


def is_alone() -> bool:
    """Whether this process has no other Python thread."""
    return len(sys._current_frames()) == 1


def runs_here(codes: Collection[CodeType]) -> bool:
    """Whether the calling thread is executing one of `codes`, or something that it called."""
    return _is_in(sys._getframe(1), _identities(codes))


def runs_elsewhere(codes: Collection[CodeType]) -> bool:
    """Whether another thread executes one of `codes`, or something that it called.

    The answer holds while this thread keeps the GIL, and only if it kept it during the look.
    """
    identities, own = _identities(codes), threading.get_ident()
    return any(
        _is_in(frame, identities)
        for thread, frame in sys._current_frames().items()
        if thread != own
    )


def compiles_elsewhere() -> bool:
    """Whether another thread is in the middle of ``torch.compile``'s tracing."""
    file = getattr(sys.modules.get(_COMPILER), "__file__", None)
    own = threading.get_ident()
    for thread, innermost in sys._current_frames().items() if file else ():
        frame: FrameType | None = innermost
        while frame is not None and thread != own:
            if frame.f_code.co_filename == file:
                return True
            frame = frame.f_back
    return False


def _identities(codes: Collection[CodeType]) -> set[int]:
    # By identity: code objects of equal content are equal.
    return {id(code) for code in codes}


def _is_in(innermost: FrameType | None, identities: set[int]) -> bool:
    frame = innermost
    while frame is not None:
        if id(frame.f_code) in identities:
            return True
        frame = frame.f_back
    return False
