"""What the modules that the mlx set patches hold, as text and as objects."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

from sglang_perf_patches import sets
from sglang_perf_patches.compat import source
from sglang_perf_patches.live import wrappers as objects
from sglang_perf_patches.model.patch import module_of


def patched_modules() -> list[str]:
    tree = source.installed()
    named = (
        module_of(reference)
        for patch in sets.declared("mlx").patches
        for variant in patch.variants
        for reference in variant.targets + variant.adds + variant.depends
    )
    return [name for name in dict.fromkeys(named) if tree.path(name)]


def describe(modules: Sequence[ModuleType]) -> dict[str, str]:
    """Each attribute in words that are the same in every process, a function by its code."""
    return {name: _words(value) for name, value in _attributes(modules)}


def held(modules: Sequence[ModuleType]) -> dict[str, tuple[object, ...]]:
    """Each attribute's object by identity, and its code's, its dictionary's and its defaults'."""
    values = {}
    for name, value in _attributes(modules):
        function = objects.underlying(value)
        code = getattr(function, "__code__", None)
        own = tuple(sorted(getattr(function, "__dict__", {}))) if code else ()
        values[name] = (_Same(value), _Same(code), own)
    return values


class _Same:
    """Equal to what holds the identical object; this keeps it alive."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


def _attributes(modules: Sequence[ModuleType]) -> Iterator[tuple[str, Any]]:
    for module in modules:
        for name, value in vars(module).items():
            if name in {"__builtins__", "__cached__", "__spec__", "__loader__"}:
                continue
            yield f"{module.__name__}:{name}", value
            if isinstance(value, type) and value.__module__ == module.__name__:
                for inner, attribute in vars(value).items():
                    if inner not in {"__dict__", "__weakref__", "__doc__"}:
                        yield f"{module.__name__}:{name}.{inner}", attribute


def _words(value: Any) -> str:
    function = objects.underlying(value)
    if isinstance(function, FunctionType):
        code = function.__code__
        shape = [type(value).__name__, function.__qualname__, sorted(vars(function)), _code(code)]
        return hashlib.sha256(repr(shape).encode()).hexdigest()
    if isinstance(value, ModuleType | type):
        return f"{type(value).__name__} {getattr(value, '__module__', '')} {value.__name__}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _code(code: CodeType) -> list[object]:
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return [code.co_filename, code.co_firstlineno, code.co_code.hex(), code.co_names, constants]
