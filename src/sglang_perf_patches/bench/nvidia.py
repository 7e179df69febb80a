"""What NVIDIA's tool says of the GPUs of this machine."""

from __future__ import annotations

import shutil
import subprocess

_LIMIT_S = 30.0


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
