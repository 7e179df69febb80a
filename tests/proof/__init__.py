"""The proof of every patch on a CPU: its checks on the host, and those of ``verify``.

``tests/proof/SET/PATCH.py`` holds the checks of a patch that need no device: ``CHECKS``, a name for
each scenario → what compares it. The checks of ``verify/SET/PATCH.py`` run here too, on what
`stubs` stands in for a GPU; one of the same name here, with inputs that suit a CPU, takes the place
of such a check. Everything runs in a process next to one release.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sglang_perf_patches import verify
from sglang_perf_patches.model.patch import room_of
from sglang_perf_patches.verify import Check, Inputs, child

# The runner's rig has no worker that releases a request. So random traffic drives these in servers:
# mlx.released-rows with the set in server/test_mlx_hybrid, and on dense models in test_mlx_rows.
_OF_SCHEDULER = (
    *("mlx.hybrid-cache", "mlx.hybrid-defaults"),
    *("mlx.relay-device", "mlx.released-rows"),
)
OF_RUNNER = "mlx" + "".join(f",-{patch}" for patch in _OF_SCHEDULER)
"""The selection of the other mlx patches that are on by default."""


def needs_no_scheduler(patch_id: str) -> bool:
    """Whether a patch is of MLX's runner alone: stand-ins take the place of the rest of sglang."""
    return patch_id.startswith("mlx.") and patch_id not in _OF_SCHEDULER


def prepare(patch_id: str) -> None:
    """Make this process fit for the checks of a patch, before sglang is imported."""
    from tests.proof import standalone, stubs

    (standalone if needs_no_scheduler(patch_id) else stubs).lend()


def checks(patch_id: str) -> dict[str, Check]:
    by_name: dict[str, Check] = {}
    for case in verify.cases(patch_id):
        by_name |= verify.checks(case.module)
    if (Path(__file__).parent / f"{room_of(patch_id).replace('.', '/')}.py").is_file():
        by_name |= import_module(f"{__name__}.{room_of(patch_id)}").CHECKS
    assert by_name, f"nothing proves {patch_id}"
    return by_name


def run(patches: Sequence[str], inputs: Inputs) -> Iterator[dict[str, Any]]:
    """The line of each patch of one set, and of one kind of process: see `child`."""
    for patch in patches:
        prepare(patch)
    yield from child.run(patches, checks, inputs)
