"""What is around a definition counts: in the source, and later in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from throwaway import Throwaway

from sglang_perf_patches.compat import source
from sglang_perf_patches.compat.definition import differing

MODULE = """
from sglang.srt.sizes import SIZE
LIMIT = 4
SEVERAL = (LIMIT, 2)
OTHER = 1


class Base:
    pass


class Worker(Base):
    factor = 1

    def step(self, x, by=3):
        return x * self.factor + SEVERAL[0] + SIZE


class Child(Worker):
    pass


def unread():
    return OTHER
"""
SIZES = "SIZE = 64\nUNREAD = 1\n"
STEP = "sglang.srt.m:Worker.step"


def step(folder: Path, module: str = MODULE, sizes: str = SIZES) -> source.Definition:
    (folder / "srt").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "srt" / "m.py").write_text(module)
    (folder / "srt" / "sizes.py").write_text(sizes)
    definition = source.Tree(folder).definition(STEP)
    assert definition
    return definition


CHANGES = {
    "a value": ("LIMIT = 4", "LIMIT = 5", "a value that it reads"),
    "a value by another": ("(LIMIT, 2)", "(LIMIT, 3)", "a value that it reads"),
    "a value of the class": ("factor = 1", "factor = 2", "a value that it reads"),
    "another base": ("Worker(Base)", "Worker(Other)", "the header of a class around it"),
    "a decorator of the class": (
        "class Worker",
        "@final\nclass Worker",
        "the header of a class around it",
    ),
    "a method put there later": (
        "def unread",
        "Worker.step = lambda self, x: x\ndef unread",
        "what later lines of its file put in its place",
    ),
    "one put there by name": (
        "def unread",
        "setattr(Worker, 'step', None)\ndef unread",
        "what later lines of its file put in its place",
    ),
    "a subclass that overrides": (
        "(Worker):\n    pass",
        "(Worker):\n    def step(self, x): pass",
        "which classes of its file override it",
    ),
    "the function": ("x * self", "x + self", "its source"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_around_a_definition_is_part_of_it(tmp_path: Path, change: str) -> None:
    before, after, part = CHANGES[change]
    assert MODULE.count(before) == 1
    known = step(tmp_path / "known").digest
    digest = step(tmp_path / "found", MODULE.replace(before, after)).digest
    assert differing(known, digest) == part


def test_a_value_of_another_file_too(tmp_path: Path) -> None:
    known = step(tmp_path / "known")
    changed = step(tmp_path / "found", sizes=SIZES.replace("64", "32"))
    assert (
        differing(known.digest, changed.digest)
        == "a value that it reads from a class or another file"
    )
    assert known.values["sglang.srt.sizes:SIZE"] == known.values["sglang.srt.m:SIZE"] == "64"


@pytest.mark.parametrize("text", ["OTHER = 1", "return OTHER", "UNREAD = 1"])
def test_what_it_does_not_read_is_not(tmp_path: Path, text: str) -> None:
    changed = [each.replace(text, text.replace("1", "2") + "  # more") for each in (MODULE, SIZES)]
    assert changed != [MODULE, SIZES]
    assert step(tmp_path / "known").digest == step(tmp_path / "found", *changed).digest


REPLACED = {
    "a value": ("c.LIMIT = 5", "sglang.srt.c:LIMIT"),
    "a value of another module": ("c2.SIZE = 32", "sglang.srt.c2:SIZE"),
    "its name here": ("c.SIZE = 32", "sglang.srt.c:SIZE"),
    "a value of the class": ("c.Own.factor = 2", "sglang.srt.c:Own.factor"),
    "a value that is gone": ("del c.LIMIT", "sglang.srt.c:LIMIT"),
    "a default": ("c.Own.step.__defaults__ = (4,)", "the default of by"),
    "a default that is named": ("c.Own.more.__defaults__ = (4,)", "the default of size"),
    "a default of a module": ("c.Own.more.__kwdefaults__ = {'kind': 4}", "the default of kind"),
    "a default by name": ("c.Own.step.__kwdefaults__ = {'more': 6}", "the default of more"),
    "a function with other globals": (
        "c.Own.step = type(c.use)(c.Own.step.__code__, dict(vars(c)), 'step', (3,));"
        " c.Own.step.__kwdefaults__ = {'more': 5}",
        "c:Own.step in memory reads the globals of other code",
    ),
    "a base of a method's class": ("c.More.__bases__ = (c.Other,)", "c:More has the base"),
    "a base": ("c.Own.__bases__ = (c.Other,)", "c:Own has the base sglang.srt.c.Other of"),
}
IN_MEMORY = """
import math
from sglang.srt.c2 import SIZE
LIMIT = 4
class Base: pass
class Other: pass
class Own(Base):
    factor = 1
    def step(self, x, by=3, *, more=5):
        return x * self.factor + LIMIT + SIZE + by + more
    def more(self, size=SIZE, *, kind=math.pi):
        return size * kind
class More(Base):
    def step(self, x):
        return x
def use(x):
    return Own().step(x)
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", REPLACED)
def test_what_is_replaced_in_memory_is_seen(throwaway: Throwaway, what: str, when: str) -> None:
    """Before a patch goes live, and by the next look while it is."""
    statement, reason = REPLACED[what]
    throwaway.put("sglang/srt/c.py", IN_MEMORY)
    throwaway.put("sglang/srt/c2.py", "SIZE = 64\n")
    first, then = (statement, "pass") if when == "before" else ("pass", statement)
    throwaway.run(
        f"""
from throwaway_patches import *
import throwaway_installs, sglang_perf_patches as ours
from sglang_perf_patches.live import engine
import sglang.srt.c as c, sglang.srt.c2 as c2
throwaway_installs.own = lambda patching: patching.override(
    "sglang.srt.c:use", lambda inner: lambda x: inner(x) + 1000
)
depends = ("sglang.srt.c:Own.step", "sglang.srt.c:Own", "sglang.srt.c:More.step")
use(declare("one.own", install="own", targets=("sglang.srt.c:use",), depends=depends))
{first}
state = ours.activate("all").of("one.own")
assert {when == "before"} or state.state == "live", state
{then}
engine.look_again()
state = engine.report().of("one.own")
assert state.state == "conflict" and {reason!r} in state.reason, state
if {when == "after"} and "del" not in {statement!r}:
    assert c.use(1) < 1000
"""
    )
