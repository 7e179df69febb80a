"""What is around a definition counts, and what it reads: in the source, and later in memory."""

from pathlib import Path

import pytest
from throwaway import Throwaway

from sglang_perf_patches.compat import source
from sglang_perf_patches.compat.definition import differing

STEP = "sglang.srt.m:Worker.step"
FORWARD = "model_executor/forward_batch_info.py"
FILES = {
    "m.py": """
from sglang.srt.sizes import SIZE
from sglang.srt.bases import Base, Kind as Named
from sglang.srt.environ import envs
from sglang.srt.passing import Passed
LIMIT = 4
SEVERAL = (LIMIT, 2)
OTHER = 1

class Local(Base):
    near = 1

class Unrelated:
    FAR = 5

class Worker(Local):
    own = 1

    def step(self, batch, by=3):
        if batch.forward_mode.is_idle() or Unrelated.FAR:
            return Named.ONE, Passed.FIRST, envs.SGLANG_STEPS.get()
        return self.near + self.far + self.own + SEVERAL[0] + SIZE

class Child(Worker):
    pass

def unread():
    return OTHER, Base.unread
""",
    "sizes.py": "SIZE = 64\nUNREAD = 1\n",
    "environ.py": """
class Envs:
    SGLANG_STEPS = EnvInt(20)
    SGLANG_OTHER = EnvInt(1)

envs = Envs()
""",
    "bases.py": """
from enum import IntEnum
class Root:
    far: int = 2
    unread = 3
class Base(Root):
    def step(self):
        self.unread = 4
class Kind(IntEnum):
    ZERO = 0
    ONE = 1
""",
    "passing.py": "from sglang.srt.deeper import Inner as Passed\n",
    "deeper.py": """
import enum
class Own(enum.Enum):
    def label(self):
        return 1
class Inner(Own):
    FIRST = "first"
""",
    FORWARD: """
from enum import IntEnum
class ForwardMode(IntEnum):
    IDLE = 0
    def is_idle(self):
        return self == ForwardMode.IDLE
""",
}


def step(folder: Path, file: str = "m.py", before: str = "", after: str = "") -> source.Definition:
    """The step, where one file has something else."""
    assert not before or FILES[file].count(before) == 1
    for name, text in FILES.items():
        path = folder / "srt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(before, after) if name == file and before else text)
    (folder / "__init__.py").touch()
    definition = source.Tree(folder).definition(STEP)
    assert definition
    return definition


OF_A_CLASS = "a value that it reads from a class or another file"
PUT_LATER = "what later lines of its file put in its place"
HEADER = "the header of a class around it"
OVERRIDES = "which classes of its file override it"
CHANGES = {
    "a value": ("m.py", "LIMIT = 4", "LIMIT = 5", "a value that it reads"),
    "a value by another": ("m.py", "(LIMIT, 2)", "(LIMIT, 3)", "a value that it reads"),
    "a value of the class": ("m.py", "own = 1", "own = 2", "a value that it reads"),
    "another base": ("m.py", "Worker(Local)", "Worker(Other)", HEADER),
    "a decorator of the class": ("m.py", "class Worker", "@final\nclass Worker", HEADER),
    "a method put there later": ("m.py", "def u", "Worker.step = None\ndef u", PUT_LATER),
    "one put there by name": ("m.py", "def u", "setattr(Worker, 'step', None)\ndef u", PUT_LATER),
    "a subclass that overrides": ("m.py", "    pass", "    def step(self, x): pass", OVERRIDES),
    "the function": ("m.py", "self.near +", "self.near -", "its source"),
    "a value of another file": ("sizes.py", "SIZE = 64", "SIZE = 32", OF_A_CLASS),
    "a member of an enumeration": ("bases.py", "ONE = 1", "ONE = 2", OF_A_CLASS),
    "another member, which auto() may count": ("bases.py", "ZERO = 0", "ZERO = 3", OF_A_CLASS),
    "an enumeration that a file passes on": ("deeper.py", '"first"', '"second"', OF_A_CLASS),
    "the base of an enumeration": ("deeper.py", "return 1", "return 2", OF_A_CLASS),
    "a predicate of the forward mode": (FORWARD, "return self ==", "return self !=", OF_A_CLASS),
    "the default of a setting": ("environ.py", "EnvInt(20)", "EnvInt(21)", OF_A_CLASS),
    "a constant of a base in the file": ("m.py", "near = 1", "near = 2", OF_A_CLASS),
    "a constant of a base of a base": ("bases.py", "far: int = 2", "far: int = 3", OF_A_CLASS),
    "a constant of another class": ("m.py", "FAR = 5", "FAR = 6", OF_A_CLASS),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_around_a_definition_is_part_of_it(tmp_path: Path, change: str) -> None:
    *changed, part = CHANGES[change]
    known, found = step(tmp_path / "known").digest, step(tmp_path / "found", *changed).digest
    assert differing(known, found) == part


def test_a_value_has_the_text_of_the_file_that_has_it(tmp_path: Path) -> None:
    values = step(tmp_path).values
    assert values["sglang.srt.sizes:SIZE"] == values["sglang.srt.m:SIZE"] == "64"


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("m.py", "OTHER = 1", "OTHER = 2  # more"),
        ("m.py", "return OTHER, Base.unread", "return OTHER, Base.more"),
        ("sizes.py", "UNREAD = 1", "UNREAD = 2  # more"),
        ("bases.py", "unread = 3", "unread = 4"),
        ("bases.py", "self.unread = 4", "self.unread = 5"),
        ("environ.py", "EnvInt(1)", "EnvInt(2)"),
    ],
)
def test_what_it_does_not_read_is_not(tmp_path: Path, file: str, before: str, after: str) -> None:
    changed = step(tmp_path / "found", file, before, after)
    assert step(tmp_path / "known").digest == changed.digest


def test_classes_that_lead_to_each_other_or_nowhere_end(tmp_path: Path) -> None:
    step(tmp_path, "passing.py", "sglang.srt.deeper import Inner", "sglang.srt.gone import Inner")
    step(tmp_path, "bases.py", "class Root:", "class Root(Base):")
    (tmp_path / "srt" / "passing.py").write_text("from sglang.srt.passing import Passed\n")
    assert source.Tree(tmp_path).definition(STEP) is not None


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
    throwaway.play(f"""
import sglang.srt.c as c, sglang.srt.c2 as c2
depends = ("sglang.srt.c:Own.step", "sglang.srt.c:Own", "sglang.srt.c:More.step")
use(own("sglang.srt.c:use", 1000, depends=depends))
{first}
state = ours.activate("all").of("one.own")
assert {when == "before"} or state.state == "live", state
{then}
engine.look_again()
state = engine.report().of("one.own")
assert state.state == "conflict" and {reason!r} in state.reason, state
if {when == "after"} and "del" not in {statement!r}:
    assert c.use(1) < 1000
""")
