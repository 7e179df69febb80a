"""Which code the threads of this process are executing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from types import CodeType, FrameType

_TRIES = 3


def runs_here(codes: Collection[CodeType], *, beyond: int = 0) -> bool:
    """Whether the calling thread is executing one of `codes`, or something that it called.

    Args:
        codes: the code objects.
        beyond: how many of the innermost frames are not looked at.
    """
    return _is_in(sys._getframe(1 + beyond), _identities(codes))


def runs_elsewhere(codes: Collection[CodeType], but: Collection[int] = ()) -> bool:
    """Whether another thread executes one of `codes`, or something that it called.

    A generator and a coroutine count while they run, not while they are suspended.

    Args:
        codes: the code objects.
        but: identifiers of threads that are not looked at.

    Returns:
        True also where the other threads go on too fast to be looked at.
    """
    identities = _identities(codes)
    own = threading.get_ident()
    for _ in range(_TRIES):
        # A thread may go on while its frames are followed. A frame that has returned meanwhile
        # leads nowhere, so an answer counts only if every thread is where it was.
        frames = sys._current_frames()
        places = _places(frames, own)
        is_running = any(
            _is_in(frame, identities)
            for thread, frame in frames.items()
            if thread != own and thread not in but
        )
        del frames
        if is_running:
            return True
        if places == _places(sys._current_frames(), own):
            return False
    return True


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


def _places(frames: dict[int, FrameType], own: int) -> dict[int, tuple[int, int]]:
    return {thread: (id(frame), frame.f_lasti) for thread, frame in frames.items() if thread != own}
