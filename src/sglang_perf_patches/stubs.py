"""Stand-ins for what sglang imports only on a GPU machine, so that it can be imported anywhere.

They replace sgl_kernel and flashinfer, two torchvision operators that its CPU build lacks, and the
folders of C++ sources that are compiled at run time.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

KERNELS = ("sgl_kernel", "flashinfer")
"""Wheels of GPU kernels, which a CPU can't run even if they are installed."""

_DEVICES = "/sys/class/infiniband"
OPTIONAL = (
    "deep_gemm",
    *("torchao", "xgrammar", "outlines", "llguidance", "grpc", "openai_harmony", "watchfiles"),
    *("torch_memory_saver", "cuda", "py_spy", "mooncake", "modelscope"),
    *("smg_grpc_servicer", "smg_grpc_proto"),
)
"""Packages that sglang imports and nothing here uses. transformers looks for none of them: it
would take a stub for the real package."""


def install(*, rocm: bool = False) -> None:
    """Prepare this process to import sglang without a GPU, with `rocm` as for GPUs of AMD.

    It raises RuntimeError if triton or sglang is imported already.
    """
    if "triton" in sys.modules or "sglang" in sys.modules:
        raise RuntimeError("triton or sglang is imported already")
    os.environ["TRITON_INTERPRET"] = "1"  # a kernel is decorated without asking for a driver
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.meta_path.insert(0, StubFinder(KERNELS))
    if rocm:  # sglang calls some of aiter's functions when it is imported
        sys.meta_path.insert(0, StubFinder(("aiter",), lambda name: _made(name.capitalize())))
    sys.meta_path.append(StubFinder(OPTIONAL))  # of those that are not installed
    # sglang registers configurations that a newer transformers already has.
    auto: Any = importlib.import_module("transformers.models.auto.configuration_auto")
    mapping, register = auto.CONFIG_MAPPING, auto.CONFIG_MAPPING.register
    mapping.register = lambda key, value, **_: register(key, value, exist_ok=True)
    _pretend_kernel_sources()
    define_torchvision_operators()


def define_torchvision_operators() -> None:
    """Define the two operators of torchvision's library, if that does not fit the torch here."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None:
        return
    torch: Any = importlib.import_module("torch")
    for folder in spec.submodule_search_locations or ():
        for library in Path(folder).glob("_C*.so"):
            with contextlib.suppress(OSError):
                torch.ops.load_library(library)
    signature = "(Tensor dets, Tensor scores, float iou) -> Tensor"
    for operator in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):  # it is defined
            torch.library.define(f"torchvision::{operator}", signature)


def pretend_devices(named: str) -> bool:
    """Pretend that InfiniBand devices exist; False if this machine has some.

    `named` has their names, in any notation; or it is a file with them.
    """
    with contextlib.suppress(OSError):
        named = Path(named).read_text("utf-8")
    system: Any = os
    is_folder, listed = os.path.isdir, os.listdir
    if is_folder(_DEVICES):
        return False
    names = re.findall(r"[\w.-]+", named)
    system.path.isdir = lambda path: path == _DEVICES or is_folder(path)
    system.listdir = lambda path=".": names if path == _DEVICES else listed(path)
    return True


def _pretend_kernel_sources() -> None:
    """Pretend that the folders of C++ sources exist: a module of sglang checks when imported."""
    exists: Any = Path.exists

    def seen(self: Path, **options: Any) -> bool:
        is_pretended = self.name in {"include", "csrc"} and "sglang" in self.parts
        return is_pretended or bool(exists(self, **options))

    Path.exists = seen  # type: ignore[method-assign]


class _Anything(dict[str, inspect.Parameter]):
    def __contains__(self, name: object) -> bool:
        return True


class _Signature(inspect.Signature):
    @property
    def parameters(self) -> Any:
        """Among which each name is."""
        return _Anything(super().parameters)


class _Names(type):
    """A class that has any attribute, and a signature with any parameter."""

    __signature__ = _Signature()

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _made(name)


def _made(name: str) -> Any:
    """The stand-in for a name of a replaced module: a class without content.

    It also serves as a field of a pydantic model, as a base class and as one of flashinfer's
    wrappers, which takes any plan and computes nothing; in lower case it is a kernel, which raises.
    """

    def new(cls: type, *_args: Any, **_kwargs: Any) -> Any:
        if name[:1].islower():
            raise NotImplementedError(f"{name} is a kernel of a wheel that is not installed here")
        return object.__new__(cls)

    def schema(cls: type, _source: Any, _handler: Any) -> Any:
        return importlib.import_module("pydantic_core").core_schema.any_schema()

    content = {"__new__": new, "__get_pydantic_core_schema__": classmethod(schema)}
    computed = dict.fromkeys(("__init__", "begin_forward", "plan"), lambda *_, **__: None)
    return _Names(name, (), {**content, **computed})


class StubModule(ModuleType):
    """A module in which every name is a stand-in, as `made` makes it from the name."""

    __path__: list[str] = []  # noqa: RUF012
    __version__ = "999.0"

    def __init__(self, name: str, made: Callable[[str], Any] = _made) -> None:
        super().__init__(name)
        self._made = made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, self._made(name))
        return vars(self)[name]


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules in which every name is a stand-in, and all modules below them."""

    def __init__(self, names: tuple[str, ...], made: Callable[[str], Any] = _made) -> None:
        self.names = names
        self._made = made

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> Any:
        """The spec of a replaced module, else None."""
        above = sys.modules.get(name.rpartition(".")[0])
        if name in self.names or getattr(above, "__loader__", None) is self:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        """Make the module."""
        return StubModule(spec.name, self._made)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute."""
