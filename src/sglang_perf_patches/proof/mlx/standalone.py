"""Stock sglang's MLX runner without the rest of sglang, which it asks for names and little more.

The runner, its caches and its attention wrapper are the installed sglang's own, and so is its table
of environment variables. The packages above them are entered without running their ``__init__``,
and everything else of sglang is a stand-in: the scheduler's side, whose import takes PyTorch and
seconds.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .. import lent

_ENTERED = (
    "sglang",
    "sglang.srt",
    "sglang.srt.hardware_backend",
    "sglang.srt.hardware_backend.mlx",
)
_OWN = ("sglang.srt.hardware_backend.mlx.", "sglang.srt.environ", "sglang.version")


def lend() -> None:
    """Make the runner importable in this process; before sglang is imported.

    Raises:
        TreeError: there is no sglang.
        RuntimeError: sglang is imported already, in its own way.
    """
    from ...judge import source

    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "sglang" in sys.modules:
        raise RuntimeError("sglang is imported already")
    sys.meta_path.insert(0, _Finder(str(source.find_installed())))
    if "torch" not in sys.modules:
        # For annotations alone.
        sys.meta_path.append(lent.StandIns(("torch",)))


class _Finder(lent.StandIns):
    def __init__(self, root: str) -> None:
        super().__init__(())
        self._root = root

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> Any:
        """Answer for everything of sglang but what is its own."""
        if name in _ENTERED:
            spec = ModuleSpec(name, _Nothing(), is_package=True)
            spec.submodule_search_locations = ["/".join([self._root, *name.split(".")[1:]])]
            return spec
        if name.startswith("sglang.") and not name.startswith(_OWN):
            return ModuleSpec(name, self, is_package=True)
        return None


class _Nothing(Loader):
    """Loads a package without its ``__init__``."""

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty."""
