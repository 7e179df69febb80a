"""What `on_release` plays of swa.window-pool, in a process of its own: it boots real schedulers."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

from tests.proof import stubs

stubs.lend()
warnings.filterwarnings("ignore")
for name in ("sglang", "sglang_perf_patches"):
    logging.getLogger(name).setLevel(logging.CRITICAL)

from window_checks import CHECKS  # noqa: E402


def __getattr__(name: str) -> Callable[..., Any]:
    """The checks are the jobs."""
    try:
        return CHECKS[name]
    except KeyError:
        raise AttributeError(name) from None
