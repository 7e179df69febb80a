"""This machine, as a reader of figures needs to know it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import datetime, timezone

from .. import __version__

_LIMIT_S = 30.0


def facts() -> dict[str, str]:
    """Names and versions; imports no library of sglang's."""
    found = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ""),
        "python": platform.python_version(),
        "sglang-perf-patches": __version__,
        "measured": datetime.now(timezone.utc).isoformat(" ", "minutes"),
    }
    found["gpu"] = ", ".join(smi("name"))
    return {key: value for key, value in found.items() if value}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor()


def smi(field: str) -> list[str]:
    """A field of each GPU; nothing without such a GPU, or where the tool fails or hangs.

    Args:
        field: as ``nvidia-smi --help-query-gpu`` calls it.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    asked = [tool, f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        # With a driver that hangs, the tool can't even be killed: nobody waits for it.
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
    lines = [line.strip() for line in output.splitlines()]
    return [line for line in lines if line] if process.returncode == 0 else []


_abandoned: list[subprocess.Popen[str]] = []
