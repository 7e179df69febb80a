"""Imports stock sglang's MLX runner without the rest of sglang, of which it needs little but names.

The runner, its caches and its attention wrapper come from the installed sglang, and so does the
table of environment variables. Their parent packages load without running their ``__init__``. The
rest of sglang, on the scheduler's side, is a stand-in: its import needs PyTorch and takes seconds.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from sglang_perf_patches.stubs import StubFinder

_ENTERED = (
    "sglang",
    "sglang.srt",
    "sglang.srt.hardware_backend",
    "sglang.srt.hardware_backend.mlx",
)


def _none_published() -> None:
    raise ValueError("no server's arguments are published here")


# A process without a server says so; a stand-in would say anything.
_NO_SERVER: dict[str, dict[str, Any]] = {
    "sglang.srt.server_args": {"get_global_server_args": _none_published},
    "sglang.srt.runtime_context": {"RuntimeContext": None},
    "sglang.srt.utils": {
        f"is_{platform}": lambda: False for platform in ("hip", "npu", "xpu", "musa", "hpu", "cpu")
    },
}
_OWN = ("sglang.srt.hardware_backend.mlx.", "sglang.srt.environ", "sglang.version")


def lend() -> None:
    """Make the runner importable in this process; call it before sglang is imported."""
    from sglang_perf_patches.compat import source

    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "sglang" in sys.modules:
        raise RuntimeError("sglang is imported already")
    sys.meta_path.insert(0, _Finder(str(source.installed().root)))
    if "torch" not in sys.modules:
        # The runner uses torch only in annotations.
        sys.meta_path.append(StubFinder(("torch",)))


class _Finder(StubFinder):
    def __init__(self, root: str) -> None:
        super().__init__(())
        self._root = root

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> Any:
        """Find a stand-in for each sglang module that is not the installed one."""
        if name in _ENTERED:
            # As of a namespace package, whose ``__init__`` does not run.
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = ["/".join([self._root, *name.split(".")[1:]])]
            return spec
        if name.startswith("sglang.") and not name.startswith(_OWN):
            return ModuleSpec(name, self, is_package=True)
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_NO_SERVER.get(module.__name__, {}))
