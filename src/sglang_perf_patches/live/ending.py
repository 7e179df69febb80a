"""The one way in which this project ends a process, under ``SGLANG_PERF_PATCHES_STRICT``."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def end_process(line: str) -> NoReturn:
    """Write a line to stderr and end the process with exit code 1, from whatever thread.

    An exception would not do: raised in a thread or in an import it decides nothing, and whoever
    called may swallow it. Handlers registered with ``atexit`` don't run. The processes that
    multiprocessing has started from here end too: one that has just begun does not notice yet that
    its parent is gone, and would wait for it forever.
    """
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    try:
        print(line, file=sys.stderr, flush=True)
        _kill_children()
    finally:
        os._exit(1)


def _kill_children() -> None:
    find = getattr(sys.modules.get("multiprocessing"), "active_children", tuple)
    for child in find():
        with contextlib.suppress(Exception):  # after a fork it may be the parent's
            if child.is_alive():
                child.kill()
