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
    """GPUs of one kind, with what a release reads of them to resolve a server's arguments."""

    name: str  # as the driver gives it
    memory: int  # of one GPU, in MiB
    capability: tuple[int, int]
    count: int = 8
    is_assumed: bool = False  # none was found or named, so this is a default
    rocm: str = ""  # ROCm's name of the architecture; "" for a GPU of NVIDIA

    @property
    def text(self) -> str:
        """The GPUs in words."""
        major, minor = self.capability
        kind = self.rocm or f"compute capability {major}.{minor}"
        assumed = " (assumed, as this machine has no GPU; name yours with --gpu)"
        return f"{self.name}, {self.memory:,} MiB, {kind}{assumed if self.is_assumed else ''}"


KINDS = {
    "A100": Gpu("NVIDIA A100-SXM4-80GB", 81920, (8, 0)),
    "B200": Gpu("NVIDIA B200", 183359, (10, 0)),
    "B300": Gpu("NVIDIA B300 SXM6 AC", 275040, (10, 3)),
    "GB10": Gpu("NVIDIA GB10", 122572, (12, 1), 1),
    "GB200": Gpu("NVIDIA GB200", 189471, (10, 0), 4),
    "GH200": Gpu("NVIDIA GH200 480GB", 97871, (9, 0), 1),
    "H100": Gpu("NVIDIA H100 80GB HBM3", 81559, (9, 0)),
    "H20": Gpu("NVIDIA H20", 97871, (9, 0)),
    "H200": Gpu("NVIDIA H200", 143771, (9, 0)),
    "L4": Gpu("NVIDIA L4", 23034, (8, 9)),
    "L40": Gpu("NVIDIA L40", 46068, (8, 9)),
    "L40S": Gpu("NVIDIA L40S", 46068, (8, 9)),
    "MI300X": Gpu("AMD Instinct MI300X", 196592, (9, 4), rocm="gfx942"),
    "RTX4090": Gpu("NVIDIA GeForce RTX 4090", 24564, (8, 9)),
    "RTX5090": Gpu("NVIDIA GeForce RTX 5090", 32607, (12, 0)),
    "RTX6000": Gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, (12, 0)),
}
"""The kinds of GPU that can be named, next to `NONE`. The memory is what ``nvidia-smi`` or
``rocm-smi`` prints; of GB10, which shares the host's, it is what torch reports (119.7 GiB)."""

ASSUMED = replace(KINDS["H100"], is_assumed=True)
"""The default for a machine without a GPU: eight of them."""

_NAMES = ", ".join([*KINDS, NONE])


def named(name: str) -> Gpu | None:
    """The GPUs for a name, also nvidia-smi's; None for `NONE`; OperatorError for an unknown one."""
    if name.lower() == NONE:
        return None
    by_name = {**KINDS, **{_short(gpu.name): gpu for gpu in KINDS.values()}}
    by_name |= {"MI300": KINDS["MI300X"], "SPARK": KINDS["GB10"]}
    if _short(name) not in by_name:
        raise OperatorError(f"--gpu {name} is unknown: give one of {_NAMES}")
    return by_name[_short(name)]


def _short(name: str) -> str:
    return name.upper().removeprefix("NVIDIA ").replace(" ", "")


def here() -> Gpu | None:
    """This machine's GPUs by ``nvidia-smi``, or None; OperatorError if they can't be told."""
    program = shutil.which("nvidia-smi")
    if program is None:
        if shutil.which("rocm-smi") or shutil.which("amd-smi"):
            raise OperatorError("this machine has GPUs of AMD: name the server's with --gpu MI300X")
        return None
    try:
        done = subprocess.run(
            [program, *_QUERY], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
        kinds = sorted({(name, memory, capability) for name, memory, capability in rows})
        (name, memory, capability), *others = kinds
        major, minor = map(int, capability.split("."))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    if others:
        several = " and ".join([name, *(other for other, *_ in others)])
        raise OperatorError(f"this machine has {several}: name the server's GPU with --gpu")
    if memory.isdecimal():
        return Gpu(name, int(memory), (major, minor), len(rows))
    for same in KINDS.values():  # one memory for GPU and CPU
        if same.name == name:
            return replace(same, count=len(rows))
    raise OperatorError(
        f"nvidia-smi gives no memory for {name} ({memory}): name a similar GPU with --gpu, one of "
        f"{_NAMES}"
    )
