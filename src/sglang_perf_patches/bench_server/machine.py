"""The facts about this machine that a reader of figures needs."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone

from .. import __version__

_LIMIT_S = 30.0


def facts() -> dict[str, str]:
    """Name → hardware or version; imports none of sglang's libraries."""
    found = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ""),
        "python": platform.python_version(),
        "sglang-perf-patches": __version__,
        "measured": datetime.now(timezone.utc).isoformat(" ", "minutes"),
        "gpu": ", ".join(smi("name")),
    }
    return {key: value for key, value in found.items() if value}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor()


def smi(field: str) -> list[str]:
    """A field of each NVIDIA GPU; empty without one, or if ``nvidia-smi`` fails or hangs."""
    asked = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        # If the driver hangs, the tool can't even be killed, so nothing waits for it.
        process = subprocess.Popen(
            asked,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
    except OSError:
        return []
    try:
        output, _ = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        _abandoned.append(process)
        return []
    lines = map(str.strip, output.splitlines())
    return [*filter(None, lines)] if process.returncode == 0 else []


_abandoned: list[subprocess.Popen[str]] = []
