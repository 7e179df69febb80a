"""Code in memory beside what Python compiles from the source, on real and on awkward code."""

import py_compile
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
from throwaway import Throwaway

from sglang_perf_patches import downloads, sets
from sglang_perf_patches.compat import source, verdict
from sglang_perf_patches.live.memory import is_compiled_from
from sglang_perf_patches.live.wrappers import chain

AWKWARD = '''
"""Code whose meaning hangs on what is around it."""

from __future__ import annotations

import functools

if True:

    def in_a_block(x: Later) -> Later:
        def inside(y: Later) -> Later:
            return x, y, 1, 1.0, True, -0.0, {"a", "b"}

        return inside

class Base:
    def step(self, x):
        return x

class Outer(Base):
    __hidden = 1

    class Inner(Base):
        def step(self, x):
            """Text
        that is less indented.

            Than this, and a blank line above.
            """
            return super().step(x) + self.__hidden

    def step(self, x, /, *rest, scale=1, **named):
        return __class__, [y for y in rest if y in (1, 2, (3, 4))], lambda: x

    @functools.lru_cache(maxsize=None)
    @functools.wraps(Base.step)
    def decorated(self, *, __private=1):
        try:
            return self.__hidden
        except ValueError as error:
            raise RuntimeError from error
        finally:
            print(f"{self!r:>10}")

    @property
    def name(self):
        return "stock"

    @name.setter
    def name(self, value):
        global _set
        _set = value

    if True:

        async def late(self):
            async with self as one:
                yield one
'''

NAMES = ("in_a_block", *(f"Outer.{name}" for name in ("Inner.step", "step", "decorated", "late")))


@pytest.fixture
def awkward(tmp_path: Path) -> Any:
    path = tmp_path / "sglang" / "srt" / "awkward.py"
    path.parent.mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").touch()
    path.write_text(AWKWARD, encoding="utf-8")
    module = ModuleType("awkward")
    exec(compile(AWKWARD, path, "exec", dont_inherit=True), vars(module))
    return source.Tree(source.find(tmp_path)), module


def codes(module: Any, reference: str) -> list[CodeType]:
    """The code of what a reference names in a module: of a property, of each function in it."""
    held: Any = module
    for name in reference.split("."):
        held = vars(held)[name]
    if isinstance(held, property):
        return [held.fget.__code__, held.fset.__code__]  # type: ignore[union-attr]
    return [list(chain(held))[0 if isinstance(held, FunctionType) else 1].__code__]


@pytest.mark.parametrize("reference", [*NAMES, "Outer.name"])
def test_awkward_code_is_what_its_source_compiles_to_alone(awkward: Any, reference: str) -> None:
    tree, module = awkward
    definition = tree.definition(f"sglang.srt.awkward:{reference}")
    for code in codes(module, reference):
        assert is_compiled_from(code, definition)
        for other in changed(code):
            assert not is_compiled_from(other, definition)


def changed(code: CodeType) -> Iterator[CodeType]:
    """Code that differs in one thing."""
    constants = code.co_consts
    yield code.replace(co_consts=(*constants, "more"))
    for at, constant in enumerate(constants):
        yield code.replace(co_consts=(*constants[:at], [constant], *constants[at + 1 :]))
        if isinstance(constant, CodeType):
            for inside in changed(constant):
                yield code.replace(co_consts=(*constants[:at], inside, *constants[at + 1 :]))
        if constant == 1:  # True, 1 and 1.0 are equal
            for alike in {bool: 1.0, int: True, float: 1}[type(constant)], 2:
                yield code.replace(co_consts=(*constants[:at], alike, *constants[at + 1 :]))
    if code.co_names:
        yield code.replace(co_names=("other", *code.co_names[1:]))
    yield code.replace(co_code=code.co_code + code.co_code[-2:])


@pytest.mark.parametrize(
    "release", [pytest.param("0.5.9", marks=pytest.mark.whole_matrix), "0.5.23"]
)
def test_every_definition_of_a_release(release: str) -> None:
    """As the whole file has it: what a process has imported is what its files say."""
    tree = source.Tree(source.find(downloads.tree(release)))
    files: dict[Path, list[CodeType]] = {}
    compared = 0
    for judged in verdict.judge_each(sets.load(), tree):
        for definition in (judged.definitions or {}).values():
            for each in (definition, *definition.members):
                if each.path not in files:
                    files[each.path] = list(in_file(each.path))
                name = each.reference.rpartition(":")[2].rpartition(".")[2]
                first_lines = {first for first, _ in each.lines}
                for code in files[each.path]:
                    if code.co_name == name and code.co_firstlineno in first_lines:
                        compared += not each.is_class
                        assert each.is_class or is_compiled_from(code, each), each.reference
    assert compared > 100


def in_file(path: Path) -> Iterator[CodeType]:
    waiting = [compile(path.read_bytes(), str(path), "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def test_a_pyc_of_another_text_is_a_conflict(throwaway: Throwaway) -> None:
    """As one that was made unchecked, which Python never compares with its file."""
    path = throwaway.site / "sglang" / "srt" / "a.py"
    stock = path.read_text()
    path.write_text(stock.replace("return x + 1", "return x + 2"))
    py_compile.compile(
        str(path), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH, doraise=True
    )
    path.write_text(stock)
    throwaway.play("""
import sglang.srt.a as a
use(STEP, HELPER)
assert a.Worker().step(1) == 3
report = ours.activate("all")
state = report.of("one.step")
assert state.state == "conflict" and "Worker.step" in state.reason, state
assert "not what its source said" in state.reason, state
assert report.of("two.helper").state == "live", report
assert a.Worker().step(1) == 3 and a.helper(1) == 1001
""")
