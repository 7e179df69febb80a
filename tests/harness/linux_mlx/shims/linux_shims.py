"""Lets stock sglang's MLX backend, which expects Apple's hardware, run on a Linux CPU.

MLX itself runs on Linux. Five modules need something else that this machine lacks, at their import
or soon after. Each is imported unchanged, and the shims replace only the missing parts. Every class
and function of the server stays sglang's own.
"""

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

BLAS = Path(__file__).with_name("fast_blas.c")


def arm() -> None:
    """Install the import hook in front of all others; import nothing yet."""
    sys.meta_path.insert(0, _Finder())


def fast_blas(environment: Path) -> Path:
    """Where an environment has the compiled `BLAS`."""
    return environment / f"fast_blas-{sha256(BLAS.read_bytes()).hexdigest()[:16]}.so"


def load_fast_blas() -> None:
    """Let MLX multiply with it, at a tenth of the time that the reference BLAS in its wheel takes.

    What a process has loaded for all is found before a library's own dependencies.
    """
    compiled = fast_blas(Path(sys.prefix))
    if compiled.exists():
        ctypes.CDLL(str(compiled), mode=ctypes.RTLD_GLOBAL)


@contextmanager
def _overlap_loop(scheduler: Any) -> Iterator[None]:
    """Give the scheduler the MLX event loop, a base class that it has only on macOS."""
    yield
    if not hasattr(scheduler, "SchedulerMlxOverlapMixin"):
        return  # before 0.5.11 MLX runs in the ordinary loop
    from sglang.srt.hardware_backend.mlx.scheduler_mixin import SchedulerMlxOverlapMixin

    placeholder = scheduler.SchedulerMlxOverlapMixin
    scheduler.Scheduler.__bases__ = tuple(
        SchedulerMlxOverlapMixin if base is placeholder else base
        for base in scheduler.Scheduler.__bases__
    )
    scheduler.SchedulerMlxOverlapMixin = SchedulerMlxOverlapMixin


@contextmanager
def _no_metal_needed(runtime: Any) -> Iterator[None]:
    """Let the backend start where PyTorch and MLX find no Metal device."""
    yield
    runtime._validate_runtime = lambda: None


@contextmanager
def _mlx_weights(quantization: Any) -> Iterator[None]:
    """Register MLX's ways to quantise weights, which stock registers where Metal is found."""
    yield
    if hasattr(quantization, "MlxQuantizationConfig"):
        methods = dict.fromkeys(("mlx_q4", "mlx_q8"), quantization.MlxQuantizationConfig)
        for each in ("BASE_QUANTIZATION_METHODS", "QUANTIZATION_METHODS"):
            getattr(quantization, each).update(methods)


@contextmanager
def _torchvision_operators(extension: Any) -> Iterator[None]:
    """Declare two operators that torchvision's Python code uses without a check.

    The package index has torchvision built for CUDA, whose library does not load beside a CPU
    build of torch. The import of torchvision then fails for operators that nothing here calls.
    """
    yield
    if not extension._has_ops():
        import torch

        for operator in ("nms", "qnms"):
            with suppress(RuntimeError):  # `doctor` declares them too
                torch.library.define(
                    f"torchvision::{operator}",
                    "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
                )


@contextmanager
def _no_transfer_kernels(_host_pool: Any) -> Iterator[None]:
    """Let 0.5.11 import the names of CUDA kernels that copy a cache to host memory.

    The names exist only during this import. For the rest of sglang the kernels are not installed.
    """
    if find_spec("sgl_kernel") is not None:
        yield
        return
    lent = {name: ModuleType(name) for name in ("sgl_kernel", "sgl_kernel.kvcacheio")}
    lent["sgl_kernel.kvcacheio"].__getattr__ = _missing_kernel  # type: ignore[method-assign]
    sys.modules.update(lent)
    try:
        yield
    finally:
        for name in lent:
            del sys.modules[name]


def _missing_kernel(name: str) -> Callable[..., None]:
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*_arguments: object, **_options: object) -> None:
        raise NotImplementedError(f"{name} is a CUDA kernel")

    return kernel


_AROUND: dict[str, Callable[[Any], AbstractContextManager[None]]] = {
    "sglang.srt.hardware_backend.mlx.runtime": _no_metal_needed,
    "sglang.srt.layers.quantization": _mlx_weights,
    "sglang.srt.managers.scheduler": _overlap_loop,
    "sglang.srt.mem_cache.memory_pool_host": _no_transfer_kernels,
    "torchvision.extension": _torchvision_operators,
}


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _AROUND:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        with _AROUND[module.__name__](module):
            super().exec_module(module)
