"""This machine: the facts that a reader of figures needs, and the memory of its GPUs."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone

from .. import __version__

_LIMIT_S = 30.0


def facts() -> dict[str, str]:
    """Name → hardware or version; imports none of sglang's libraries."""
    return {
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "gpu": ", ".join(_smi("name")),
        "python": platform.python_version(),
        "sglang-perf-patches": __version__,
        "measured": datetime.now(timezone.utc).isoformat(" ", "minutes"),
    }


def gpu_bytes() -> int:
    """Bytes in use on all NVIDIA GPUs of this machine; 0 if that is unknown."""
    return sum(int(word) << 20 for word in _smi("memory.used") if word.isdecimal())


def _smi(field: str) -> list[str]:
    """A field of each NVIDIA GPU; empty without one, or if ``nvidia-smi`` fails or hangs."""
    asked = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            asked, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines()]
