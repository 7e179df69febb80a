"""What the threads of this process execute, and steps taken while none is inside given code.

A call that has begun would continue with the old function while the calls below it use the new
ones. So functions change only while no thread is inside one of them: see `at_rest`. If one is,
nothing happens and the caller tries again later. No call of sglang ever waits. A function that
``torch.compile`` has inlined has no frame, so such a call can't be seen: it ends with the code that
was compiled.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain, compress, islice, repeat, takewhile, tee
from operator import attrgetter, is_, itemgetter, methodcaller, not_
from types import CodeType, FrameType
from typing import Any

_INTERVAL_S, _GIVE_UP_S, _TRIES = 0.005, 0.0001, 50
_COMPILER = "torch._dynamo.convert_frame"
_CALL = methodcaller("__call__")

Step = tuple[Callable[[], Any], Any, Callable[[], Any]]
"""Reads what it changes; the object that was read; makes the change. Both are implemented in C."""


def at_rest(
    codes: Collection[CodeType],
    steps: Sequence[Step],
    is_idle: Callable[[], bool] | None = None,
) -> bool:
    """Take all steps at once if no other thread is inside one of `codes`; else return False.

    Generators and coroutines count only while they run. While another thread compiles with torch,
    nothing is done: the compiler records what it reads and compares it at its end. Without a GIL
    nothing is ever done. If a step raises, those before it were taken.

    Args:
        codes: the code objects; with none, no thread needs checking.
        steps: if memory is no longer as one of them has seen it, none is taken.
        is_idle: asked shortly before, in Python; None if there is nothing to ask.
    """
    if not _has_gil():
        return False
    if is_idle is None:
        return _in_one_call(codes, steps)

    # What it answers must still hold when the steps are taken. A thread that waits for the GIL
    # requests it only after a whole switch interval in which no other thread got it. So this thread
    # gives the GIL up, takes it again, and has one interval. A host may have set a shorter one,
    # which would not be enough: it is raised to Python's own for the attempt.
    interval = sys.getswitchinterval()
    try:
        sys.setswitchinterval(max(interval, _INTERVAL_S))
        for _ in range(_TRIES):
            time.sleep(_GIVE_UP_S)
            began = time.perf_counter()
            if not is_idle():
                return False
            if time.perf_counter() - began < _INTERVAL_S / 2:
                return _in_one_call(codes, steps)
    finally:
        sys.setswitchinterval(interval)
    return False


def _in_one_call(codes: Collection[CodeType], steps: Sequence[Step]) -> bool:
    # One call into C checks the threads and takes the steps. Only Python code gives the GIL up or
    # runs signal handlers. So no other code runs in between, however many threads there are.
    with _without_collections():
        reads, held, acts = zip(*steps, strict=True) if steps else ((), (), ())
        some, same = tee(_elsewhere() if codes else ())
        inside = map(set(map(id, codes)).__contains__, map(id, some))
        # Each `next` below is one whole question. The sum uses every frame up, and keeps none.
        is_safe = chain(
            map(not_, map(sum, (chain(inside, _of_compiler(same)),))),
            map(is_, map(_CALL, reads), held),
        )
        taken = map(isinstance, map(_CALL, acts), repeat(object))  # true, whatever a step returns
        return all(chain(is_safe, taken))


def runs_here(codes: Collection[CodeType]) -> bool:
    """Whether the calling thread is executing one of `codes`, or something that it called."""
    identities = set(map(id, codes))  # code objects of equal content are equal
    frame: FrameType | None = sys._getframe(1)
    while frame and id(frame.f_code) not in identities:
        frame = frame.f_back
    return frame is not None


def runs_anywhere(codes: Collection[CodeType]) -> bool:
    """Whether any thread executes one of `codes`, or something that it called."""
    with _without_collections():
        all_codes = chain.from_iterable(map(itemgetter(1), _stacks()))
        return bool(sum(map(set(map(id, codes)).__contains__, map(id, all_codes))))


def waits_for() -> str:
    """What `at_rest` waits for, worded to follow "until"."""
    if not _has_gil():
        return "this Python has a GIL"
    with _without_collections():
        is_compiling = any(tuple(_of_compiler(_elsewhere())))
    return "no thread compiles with torch" if is_compiling else "no thread is inside it"


def _has_gil() -> bool:
    return getattr(sys, "_is_gil_enabled", lambda: True)()


def _of_compiler(codes: Iterator[CodeType]) -> Iterator[bool]:
    file = getattr(sys.modules.get(_COMPILER), "__file__", None) or ""
    return map(file.__eq__, map(attrgetter("co_filename"), codes if file else ()))


def _elsewhere() -> Iterator[CodeType]:
    """The code objects that other threads execute, each thread's innermost first."""
    pairs, again = tee(_stacks())
    is_other = map(threading.get_ident().__ne__, map(itemgetter(0), pairs))
    return chain.from_iterable(compress(map(itemgetter(1), again), is_other))


def _stacks() -> Iterator[tuple[int, Iterator[CodeType]]]:
    """Of each thread its number, and the code objects that it executes, innermost first."""
    # To be used up in one call into C, `_without_collections`: a frame that has ended by then can
    # point at freed memory. On 3.11, with torch, that was seen to end processes. A loop in Python
    # over ``f_back`` gives the GIL up in between if it takes long. So does a finaliser, and up to
    # 3.11 garbage is collected inside of C.
    items = map(dict.items, islice(iter(sys._current_frames, None), 1))
    threads, innermost = tee(chain.from_iterable(items))
    backwards = map(chain, zip(map(itemgetter(1), innermost)), repeat(repeat("f_back")))
    frames = map(partial(takewhile, bool), map(accumulate, backwards, repeat(getattr)))
    codes = map(partial(map, attrgetter("f_code")), frames)
    return zip(map(itemgetter(0), threads), codes, strict=True)


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
