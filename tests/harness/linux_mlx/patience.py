"""How long tests wait for what should come. It is the one limit: only what hangs reaches it."""

import os
import time
from collections.abc import Callable

QUIET_S = 1200.0
"""Seconds that a test waits on a quiet machine: for a server, a command, or a rank."""


def limit_s(quiet_s: float = QUIET_S) -> float:
    """Seconds to wait now: more in proportion if more processes want to run than there are cores.

    At a load of 19 on two cores a server did not answer in 600 s.
    """
    return quiet_s * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def wait_for(condition: Callable[[], object], *, every_s: float = 0.25) -> bool:
    """Wait until a condition holds; False if it does not within the limit, as the load is then."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit_s():
            return False
        time.sleep(every_s)
    return True
