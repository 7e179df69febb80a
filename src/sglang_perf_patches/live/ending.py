"""The one way in which this project ends a process, under ``SGLANG_PERF_PATCHES_STRICT``."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def end_process(line: str) -> NoReturn:
    """Write a line to stderr and end the process with exit code 1, from whatever thread.

    An exception would not do: raised in a thread or in an import it decides nothing, and whoever
    called may swallow it. Handlers registered with ``atexit`` don't run.
    """
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    try:
        print(line, file=sys.stderr, flush=True)
    finally:
        os._exit(1)
