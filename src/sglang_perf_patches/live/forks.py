"""Registers what a fork does to the executor; imported before the first request.

A child must not inherit a lock that is held by a thread that it lacks. `logging` is imported first,
because it takes its own lock at a fork: it must do so after the executor has waited.
"""

from __future__ import annotations

import logging  # noqa: F401
import os

from . import ending  # noqa: F401  a child that can import nothing may need it
from .executor import executor

os.register_at_fork(
    before=executor.before_fork,
    after_in_parent=executor.after_fork,
    after_in_child=executor.after_fork_in_child,
)
