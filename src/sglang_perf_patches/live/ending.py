"""Ending the process, which this project does only under ``SGLANG_PERF_PATCHES_STRICT``."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def end_process(line: str) -> NoReturn:
    """Write a line to stderr and end the process with exit code 1, from any thread.

    ``atexit`` handlers don't run. Children that multiprocessing started here are killed too.
    """
    # An exception would not do: in another thread or in an import it ends nothing, and sglang may
    # swallow it. A child that has just begun does not yet watch its parent, and would wait forever.
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    try:
        print(line, file=sys.stderr, flush=True)
        for child in getattr(sys.modules.get("multiprocessing"), "active_children", tuple)():
            with contextlib.suppress(Exception):  # after a fork it may be the parent's
                if child.is_alive():
                    child.kill()
    finally:
        os._exit(1)
