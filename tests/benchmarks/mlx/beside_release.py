"""Where the MLX scripts measure: in an environment with sglang's runner, which this one may be."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

_ROOT = Path(__file__).parents[3]


def run(script: str, release: str, measure: Callable[[], object]) -> int:
    """Measure here if sglang's MLX runner is here, else start the script anew where it is.

    Args:
        script: the file of the script, which the other process gets with this one's arguments.
        release: the release whose environment it is; the tests make and use the same one.
        measure: what measures here.

    Returns:
        the exit code.
    """
    if os.environ.get("SGLANG_USE_MLX"):
        measure()
        return 0
    sys.path[:0] = [str(_ROOT / name) for name in ("src", "tests/harness")]
    import released

    return released.again(script, release)
