"""What a definition reads of classes counts, in its own file and in others."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_perf_patches.compat import source
from sglang_perf_patches.compat.definition import differing

STEP = "sglang.srt.m:Worker.step"
BODY = """
from sglang.srt.bases import Base, Kind as Named
from sglang.srt.environ import envs
from sglang.srt.passing import Passed


class Local(Base):
    near = 1


class Unrelated:
    FAR = 5


class Worker(Local):
    own = 1

    def step(self, batch):
        if batch.forward_mode.is_idle() or Unrelated.FAR:
            return Named.ONE, Passed.FIRST, envs.SGLANG_STEPS.get()
        return self.near + self.far + self.own


def unread():
    return Base.unread
"""
FILES = {
    "m.py": BODY,
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
    "model_executor/forward_batch_info.py": """
from enum import IntEnum
class ForwardMode(IntEnum):
    IDLE = 0
    def is_idle(self):
        return self == ForwardMode.IDLE
""",
}


def digest(folder: Path, file: str = "m.py", before: str = "", after: str = "") -> str:
    """What identifies the step where one file has something else."""
    for name, text in FILES.items():
        path = folder / "srt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(before, after) if name == file and before else text)
    (folder / "__init__.py").touch()
    definition = source.Tree(folder).definition(STEP)
    assert definition
    return definition.digest


CHANGES = {
    "a member of an enumeration": ("bases.py", "ONE = 1", "ONE = 2"),
    "another member, which auto() may count": ("bases.py", "ZERO = 0", "ZERO = 3"),
    "an enumeration that a file passes on": ("deeper.py", '"first"', '"second"'),
    "the base of an enumeration": ("deeper.py", "return 1", "return 2"),
    "a predicate of the forward mode": (
        "model_executor/forward_batch_info.py",
        "return self ==",
        "return self !=",
    ),
    "the default of a setting": ("environ.py", "EnvInt(20)", "EnvInt(21)"),
    "a constant of a base in the file": ("m.py", "near = 1", "near = 2"),
    "a constant of a base of a base": ("bases.py", "far: int = 2", "far: int = 3"),
    "a constant of another class": ("m.py", "FAR = 5", "FAR = 6"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_it_reads_of_a_class_is_part_of_it(tmp_path: Path, change: str) -> None:
    file, before, after = CHANGES[change]
    assert FILES[file].count(before) == 1
    known, found = digest(tmp_path / "known"), digest(tmp_path / "found", file, before, after)
    assert differing(known, found) == "a value that it reads from a class or another file"


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("bases.py", "unread = 3", "unread = 4"),
        ("bases.py", "self.unread = 4", "self.unread = 5"),
        ("environ.py", "EnvInt(1)", "EnvInt(2)"),
        ("m.py", "return Base.unread", "return Base.more"),
    ],
)
def test_what_it_does_not_read_is_not(tmp_path: Path, file: str, before: str, after: str) -> None:
    assert FILES[file].count(before) == 1
    assert digest(tmp_path / "known") == digest(tmp_path / "found", file, before, after)


def test_classes_that_lead_to_each_other_or_nowhere_end(tmp_path: Path) -> None:
    digest(tmp_path, "passing.py", "sglang.srt.deeper import Inner", "sglang.srt.gone import Inner")
    digest(tmp_path, "bases.py", "class Root:", "class Root(Base):")
    (tmp_path / "srt" / "passing.py").write_text("from sglang.srt.passing import Passed\n")
    tree = source.Tree(tmp_path)
    assert tree.definition(STEP) is not None
