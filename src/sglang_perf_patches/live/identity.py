"""Objects in memory: whether a name still holds what the source defines, or somebody else's work.

A *wrapper* calls what it wraps, so both work together and it is only reported. A *replacement*
does not, so whoever made it wins and our patch stays out.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..judge.source import Definition
from ..model.patch import module_of, qualname_of
from ..model.patching import MISSING


class Foreign(Exception):
    """A name holds somebody else's object; the message names whose, and where."""


@dataclass(frozen=True)
class Stock:
    """The stock function behind a name.

    Attributes:
        function: the innermost function, whose code is the definition's own.
        wrappers: foreign wrappers around it, outermost first, as text that names whose.
    """

    function: FunctionType
    wrappers: tuple[str, ...]


def is_loaded(name: str) -> bool:
    """Whether a module has been imported and is not still being executed."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return module is not None and not getattr(spec, "_initializing", False)


def owner_of(reference: str) -> tuple[Any, str]:
    """The module or class that binds the last name of a reference, and that name.

    Raises:
        Foreign: the module is not loaded, or a class on the way is gone or not of that module.
    """
    name = module_of(reference)
    owner: Any = sys.modules.get(name)
    if owner is None:
        raise Foreign(f"module {name} is not loaded")
    *classes, last = qualname_of(reference).split(".")
    for depth, class_name in enumerate(classes, 1):
        owner = vars(owner).get(class_name)
        qualname = ".".join(classes[:depth])
        if not isinstance(owner, type) or not _is_class_of(owner, name, qualname):
            raise Foreign(f"{name}:{qualname} is replaced by {describe(owner)}")
    return owner, last


def raw(owner: Any, name: str) -> Any:
    """The attribute as the owner itself holds it, `MISSING` where it holds none."""
    return vars(owner).get(name, MISSING)


def check(definition: Definition) -> Stock | None:
    """Verify that a definition's name holds its stock object; what a function's name holds.

    Returns:
        the stock function where the definition is one; None for classes and values.

    Raises:
        Foreign: somebody replaced it, or the class it is in.
    """
    owner, name = owner_of(definition.reference)
    held = raw(owner, name)
    if held is MISSING:
        raise Foreign(f"{definition.reference} is gone from memory")
    if definition.is_class:
        module, qualname = module_of(definition.reference), qualname_of(definition.reference)
        if not isinstance(held, type) or not _is_class_of(held, module, qualname):
            raise Foreign(f"{definition.reference} is replaced by {describe(held)}")
        return None
    if not definition.is_function:
        return None
    return stock_function(held, definition)


def stock_function(held: Any, definition: Definition) -> Stock:
    """Follow wrappers from what a name holds to the function that the source defines.

    Raises:
        Foreign: the chain ends elsewhere, or a link of it does not call the next.
    """
    links = list(chain(held))
    for depth, link in enumerate(links):
        if isinstance(link, FunctionType) and _is_of(link.__code__, definition):
            # Stock's own decorators wrap too; only what exceeds them is somebody else's.
            foreign = links[: max(0, depth - definition.decorators)]
            for outer, inner in itertools.pairwise(links[: depth + 1]):
                if not _calls(outer, inner):
                    raise Foreign(f"{definition.reference} is replaced by {describe(outer)}")
            return Stock(link, tuple(describe(wrapper) for wrapper in foreign))
    raise Foreign(f"{definition.reference} is replaced by {describe(links[0])}")


def wrappers_around(held: Any, ours: Any, decorators: int = 0) -> tuple[str, ...] | None:
    """The foreign wrappers between what a name holds and our object; None if ours is not called.

    Args:
        held: what the name holds.
        ours: what we put there, or the stock function whose code we exchanged.
        decorators: how many of the innermost wrappers are stock's own.
    """
    links = list(chain(held))
    target = underlying(ours)
    for depth, link in enumerate(links):
        if link is target:
            if all(_calls(*pair) for pair in itertools.pairwise(links[: depth + 1])):
                return tuple(describe(wrapper) for wrapper in links[: max(0, depth - decorators)])
            return None
    return None


def chain(held: Any) -> Iterator[Any]:
    """What a name holds, then what that says it wraps, and so on."""
    seen: set[int] = set()
    link = underlying(held)
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        # Triton's kernels and autotuners keep what they wrap as `fn`.
        inner = getattr(link, "__wrapped__", None)
        if inner is None and not isinstance(link, FunctionType | type):
            inner = getattr(link, "fn", None)
        link = underlying(inner)


def underlying(held: Any) -> Any:
    """The function in a method descriptor, or the object itself."""
    if isinstance(held, staticmethod | classmethod):
        return held.__func__
    if isinstance(held, property):
        return held.fget
    if isinstance(held, functools.cached_property):
        return held.func
    return held


def describe(held: Any) -> str:
    """Name an object and the distribution, else the module or file, that it comes from."""
    link = underlying(held)
    hook = _hook_inside(link)
    if hook is not None:
        return describe(hook)
    code = getattr(link, "__code__", None)
    file = code.co_filename if isinstance(code, CodeType) else None
    module = _module_at(file) or getattr(link, "__module__", None) or type(link).__module__
    # A function made by functools.wraps bears the name of what it stands for, its code its own.
    name = getattr(code, "co_qualname", None) or getattr(link, "__qualname__", None)
    name = name or type(link).__qualname__
    return f"{module}.{name} of {_distribution(module.partition('.')[0]) or file or module}"


def _distribution(package: str) -> str | None:
    """The distribution that brings a top-level package, also where it is installed editable."""
    for entry_point in metadata.entry_points(group="sglang.srt.plugins"):
        if entry_point.value.partition(":")[0].partition(".")[0] == package and entry_point.dist:
            return entry_point.dist.name
    return next(iter(metadata.packages_distributions().get(package, [])), None)


def _hook_inside(link: Any) -> Any:
    """The plugin's own function in a wrapper that sglang's HookRegistry made for it."""
    if isinstance(link, FunctionType) and link.__code__.co_filename.endswith("hook_registry.py"):
        return _cells(link).get("hook")
    return None


def _calls(outer: Any, inner: Any) -> bool:
    """Whether a link holds what it says it wraps.

    ``functools.wraps`` also sets ``__wrapped__`` on a function that never calls the original, as
    the HookRegistry's REPLACE does: such a one does not close over it.
    """
    if not isinstance(outer, FunctionType):
        return True
    held = [*_cells(outer).values(), *(outer.__defaults__ or ())]
    held += (outer.__kwdefaults__ or {}).values()
    return any(underlying(value) is inner for value in held)


def _cells(function: FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    return found


def _is_of(code: CodeType, definition: Definition) -> bool:
    first_lines = {first for first, _ in definition.lines}
    return code.co_firstlineno in first_lines and _same_file(code.co_filename, definition.path)


@functools.lru_cache(maxsize=1024)
def _same_file(name: str, path: Path) -> bool:
    return name == str(path) or Path(name).resolve() == path.resolve()


def _is_class_of(held: type, module: str, qualname: str) -> bool:
    return held.__module__ == module and held.__qualname__ == qualname


def _module_at(file: str | None) -> str | None:
    if file is None:
        return None
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and getattr(module, "__file__", None) == file:
            return name
    return None
