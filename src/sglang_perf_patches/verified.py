"""Records of ``verify``: each lifts one gate, that of a GPU on which the project tested nothing.

``verify`` keeps a record if every result of a patch equalled stock's on a GPU. It names all that
can change such a result. A server lifts the gate of that patch only if it finds a record with
exactly its own values, for each kind of GPU of its machine. Only this user can have written it.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from . import gpu
from .compat.definition import digest_of
from .compat.verdict import Verdict
from .model import private
from .model.patch import room_of

_PACKAGE = Path(__file__).parent
_KERNELS = (
    *("torch", "triton", "sglang-kernel", "sgl-kernel"),
    *("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"),
)
_lifted: set[str] = set()

is_proving = False
"""Whether this process is one of ``verify``, whose comparison is what a record tells of."""


def lacking(verdict: Verdict) -> str | None:
    """None if records prove a patch on this machine's GPUs; else what to add to the gate's reason.

    A patch that was lifted once in this process stays lifted. The verdict is that it applies.
    """
    if is_proving or verdict.patch.id in _lifted:
        return None
    with suppress(OSError, ValueError, RecursionError):
        wanted = records(verdict)
        if wanted and all(_read(path(each)) == each for each in wanted):
            _lifted.add(verdict.patch.id)
            return None
    return hint(verdict.patch.id)


def hint(patch_id: str) -> str:
    """The command that makes a record, to follow a reason; "" if nothing is compared on a GPU."""
    of_set, _, name = room_of(patch_id).partition(".")
    is_compared = of_set != "mlx" and (_PACKAGE / "verify" / of_set / f"{name}.py").is_file()
    return f"; to test it on your GPU: sglang-perf-patches verify {patch_id}" if is_compared else ""


def records(verdict: Verdict) -> list[dict[str, Any]]:
    """The records that lift a patch here, one for each kind of GPU.

    Empty if the driver does not tell all GPUs, or if this package has no source. Our own code may
    be unreadable, which raises OSError.
    """
    machine = gpu.machine()
    if machine is None or not machine.is_known or not _our_code():
        return []
    definitions = sorted((verdict.definitions or {}).items())
    code = "\n".join(f"{reference} {definition.digest}" for reference, definition in definitions)
    same = {
        "patch": verdict.patch.id,
        "driver": machine.driver,
        "versions": {name: version_of(name) for name in _KERNELS},
        "sglang": verdict.release,
        "sglang's code": digest_of(code),
        "our code": _our_code(),
    }
    return [{**same, "gpu": name, "capability": of_it} for name, of_it in machine.kinds]


def path(record: dict[str, Any]) -> Path:
    """Where a record is kept; other values have another place, so environments do not compete."""
    digest = digest_of(json.dumps(record, sort_keys=True))
    return private.cache() / "verified" / f"{record['patch']}-{digest[:16]}.json"


def _read(place: Path) -> Any:
    """The JSON in a file that only this user can read and write, in such a folder."""
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        private.require(place.parent, os.fstat(folder))
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with os.fdopen(os.open(place.name, flags, dir_fd=folder), encoding="utf-8") as file:
            about = os.fstat(file.fileno())
            is_private = about.st_uid == os.getuid() and not about.st_mode & 0o077
            if not (stat.S_ISREG(about.st_mode) and is_private):
                raise PermissionError(f"{place} is not a private file of this user (mode 0600)")
            return json.loads(file.read(1 << 16))
    finally:
        os.close(folder)


def version_of(name: str) -> str | None:
    """The installed version of a package; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@cache
def _our_code() -> str:
    """A digest of this package's modules: a patch, what runs it, and what compares it."""
    digests = [
        f"{file.relative_to(_PACKAGE)} {hashlib.sha256(file.read_bytes()).hexdigest()}"
        for file in sorted(_PACKAGE.rglob("*.py"))
    ]
    return digest_of("\n".join(digests)) if digests else ""
