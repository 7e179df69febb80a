"""What stock sglang asks of a GPU machine while it is imported, lent to it on a CPU.

Only what can't be here is stood in for: the sgl_kernel wheel, the C++ sources that a release's
compiled kernels would be built from, and torchvision's operators. Pools, allocators, queues and
batches are sglang's own; Triton runs their kernels in its interpreter.
"""

from __future__ import annotations

import importlib.machinery
import logging
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar


def lend() -> None:
    """Put the stand-ins in place; before torch and sglang are imported."""
    from sglang_perf_patches.bench.decode_worker import prepare_process

    warnings.filterwarnings("ignore")
    prepare_process()
    sys.meta_path.insert(0, _Finder())
    sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")
    Path.exists = _exists_or_sources  # type: ignore[method-assign]

    import torch
    from transformers import AutoConfig

    logging.getLogger("sglang_perf_patches").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    register = AutoConfig.register
    # A newer transformers brings models that sglang registers too.
    AutoConfig.register = staticmethod(  # type: ignore[method-assign]
        lambda kind, config, exist_ok=False: register(kind, config, exist_ok=True)
    )


class _Absent(ModuleType):
    """A module or a function of a wheel that is not here; nothing may call it."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, _Absent(f"{self.__name__}.{name}"))
        return vars(self)[name]

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{self.__name__} is not here")


class _Finder:
    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "sgl_kernel":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


_exists = Path.exists


def _exists_or_sources(self: Path, **options: Any) -> bool:
    if self.name in {"include", "csrc"} and self.parent.name in {"jit", "jit_kernel"}:
        return True
    return _exists(self, **options)
