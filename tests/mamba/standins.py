"""Modules that a machine lacks and that the code under test only imports."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

_OPTIONAL = (
    *("sgl_kernel", "flashinfer", "deep_gemm"),
    *("torchao", "xgrammar", "outlines", "llguidance", "grpc", "openai_harmony", "watchfiles"),
    *("torch_memory_saver", "cuda", "py_spy", "mooncake", "modelscope"),
    *("smg_grpc_servicer", "smg_grpc_proto"),
)
"""None that transformers looks for: it would take a stand-in for the real thing."""


def lend_missing(*also: str) -> None:
    """Stand in for optional packages that are not installed, and for these even if they are."""
    sys.meta_path.append(StandIns(_OPTIONAL))
    if also:
        sys.meta_path.insert(0, StandIns(also))
    # An old release imports names that a newer kernel wheel no longer has.
    kernels: Any = importlib.import_module("sgl_kernel")
    if not isinstance(kernels, _Module):
        kernels.__getattr__ = _Module("sgl_kernel").__getattr__


def lend_configurations() -> None:
    """Releases of sglang register configurations that a newer transformers brings itself."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    register = CONFIG_MAPPING.register

    def again(key: Any, value: Any, exist_ok: bool = False) -> None:
        register(key, value, exist_ok=True)

    CONFIG_MAPPING.register = again


class _Names(type):
    """A class that has whatever attribute is asked of it."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _made(name)


def _made(name: str) -> Any:
    """A class without content, that also serves as a field of a pydantic model."""

    def new(cls: type, *_arguments: Any, **_options: Any) -> Any:
        return object.__new__(cls)

    def schema(cls: type, _source: Any, _handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()

    content = {"__new__": new, "__get_pydantic_core_schema__": classmethod(schema)}
    return _Names(name, (), {**content, "__init__": lambda *_, **__: None})


class _Module(ModuleType):
    __path__: list[str] = []  # noqa: RUF012
    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _made(name)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules in which every name is a class without content."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> Any:
        package, dot, _ = name.partition(".")
        lent = isinstance(sys.modules.get(package), _Module)
        if package in self.names and (lent or not dot):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass
