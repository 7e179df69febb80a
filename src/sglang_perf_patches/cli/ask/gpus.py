"""The GPUs to resolve a server's arguments for: this machine's, or a kind that was named."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, replace

from ...model.errors import OperatorError

NONE = "none"
_SECONDS = 20
_QUERY = ["--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits"]


@dataclass(frozen=True)
class Gpu:
    """GPUs of one kind, with what a release reads of them to resolve a server's arguments.

    Attributes:
        name: as the driver gives it.
        memory: of one GPU, in MiB.
        capability: compute capability.
        count: how many there are.
        is_assumed: whether none was found or named, so that this is a default.
    """

    name: str
    memory: int
    capability: tuple[int, int]
    count: int = 8
    is_assumed: bool = False

    @property
    def text(self) -> str:
        """The GPUs in words."""
        major, minor = self.capability
        line = f"{self.count} x {self.name}, {self.memory:,} MiB, compute capability"
        return f"{line} {major}.{minor}" + (
            " (assumed, because no GPU is here: --gpu names another one)" if self.is_assumed else ""
        )


KINDS = {
    "A100": Gpu("NVIDIA A100-SXM4-80GB", 81920, (8, 0)),
    "B200": Gpu("NVIDIA B200", 183359, (10, 0)),
    "H100": Gpu("NVIDIA H100 80GB HBM3", 81559, (9, 0)),
    "H20": Gpu("NVIDIA H20", 97871, (9, 0)),
    "H200": Gpu("NVIDIA H200", 143771, (9, 0)),
    "L4": Gpu("NVIDIA L4", 23034, (8, 9)),
    "L40": Gpu("NVIDIA L40", 46068, (8, 9)),
    "L40S": Gpu("NVIDIA L40S", 46068, (8, 9)),
    "RTX4090": Gpu("NVIDIA GeForce RTX 4090", 24564, (8, 9)),
    "RTX6000": Gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, (12, 0)),
}
"""The kinds of GPU that can be named, next to `NONE`."""


def named(name: str) -> Gpu | None:
    """The GPUs for a name; None for `NONE`, a server without a GPU.

    Raises:
        OperatorError: there is none of that name.
    """
    if name.lower() == NONE:
        return None
    if name.upper() not in KINDS:
        raise OperatorError(f"--gpu {name} is unknown: give one of {', '.join([*KINDS, NONE])}")
    return KINDS[name.upper()]


def assumed() -> Gpu:
    """The default for a machine without a GPU: eight H100."""
    return replace(KINDS["H100"], is_assumed=True)


def here() -> Gpu | None:
    """This machine's GPUs by ``nvidia-smi``; None if there are none or several kinds."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *_QUERY], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
        kinds = {(name, int(memory), capability) for name, memory, capability in rows}
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    if len(kinds) != 1:
        return None
    name, memory, capability = kinds.pop()
    major, minor = capability.split(".")
    return Gpu(name, memory, (int(major), int(minor)), len(rows))
