"""Somebody else's object around stock's: a wrapper if it calls stock, otherwise a replacement."""

import sys
from importlib import metadata
from pathlib import Path

import pytest
from throwaway import Throwaway

from sglang_perf_patches.live import wrappers

SCRIPT = """
import functools
import wrapt
import sglang.srt.a as a

{definition}

if {on_function}:
    a.helper, call = theirs(a.helper), lambda: a.helper(1)
    stock, patched = 1, 1001
else:
    a.Worker.step, call = theirs(a.Worker.step), lambda: a.Worker().step(1)
    stock, patched = 2, 102
use(STEP, HELPER)
report = ours.activate("all")
touched, other = report.of("two.helper"), report.of("one.step")
if not {on_function}:
    touched, other = other, touched
assert other.state == "live", other
assert touched.state == {state!r}, touched
assert {whose!r} in touched.reason, touched
if {state!r} == "live":
    assert touched.reason.startswith("wrapped by "), touched
assert call() == (patched if {state!r} == "live" else 0) + 7, call()
ours.deactivate()
assert call() == (stock if {state!r} == "live" else 0) + 7, call()
"""

CLASS = """
class Theirs:
    def __init__(self, inner):
        {init}
    def __call__(self, *args, **named):
        return {call}
    def __get__(self, instance, owner=None):
        return functools.partial(self, instance)
theirs = Theirs
"""
FUNCTION = """
def theirs(inner):
    @functools.wraps(inner)
    def outer(*args, **named):
        return {call}
    return outer
"""
_UPDATE = "functools.update_wrapper(self, inner)"
_KEEPING = CLASS.format(
    init=f"{_UPDATE}\n        self.inner = functools.partial(inner)",
    call="self.inner(*args, **named) + 7",
)
OBJECTS = {
    "never calls": (CLASS.format(init=_UPDATE, call="7"), "conflict"),
    "never calls, and says so by itself": (
        CLASS.format(init="self.__wrapped__ = inner", call="7"),
        "conflict",
    ),
    "keeps it": (_KEEPING.replace("functools.partial(inner)", "inner"), "live"),
    "a wrapt wrapper": (
        """
@wrapt.decorator
def theirs(wrapped, instance, args, kwargs):
    return wrapped(*args, **kwargs) + 7
""",
        "live",
    ),
    "a function": (FUNCTION.format(call="inner(*args, **named) + 7"), "live"),
    "a function that never calls": (FUNCTION.format(call="7"), "conflict"),
}


@pytest.mark.parametrize("where", ["function", "method"])
@pytest.mark.parametrize("kind", OBJECTS)
def test_whoever_calls_stock_is_a_wrapper(throwaway: Throwaway, kind: str, where: str) -> None:
    definition, state = OBJECTS[kind]
    whose = "__main__.Theirs" if "class Theirs" in definition else "__main__.theirs"
    if "def outer" in definition and sys.version_info < (3, 11):
        whose = "__main__.outer"
    is_function = where == "function"
    throwaway.play(
        SCRIPT.format(definition=definition, state=state, whose=whose, on_function=is_function)
    )


def test_a_plugin_is_named_by_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "installed_editable-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[sglang.srt.plugins]\nmine = theirs.plugin:load\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert wrappers.plugin_with("theirs") == "their-plugin"
    assert wrappers.plugin_with("pytest") is None
    monkeypatch.setattr(metadata, "entry_points", lambda **_: 1 / 0)
    assert wrappers.plugin_with("unread") is None


def test_what_is_no_plugin_is_named_by_its_file() -> None:
    namespace: dict[str, object] = {"__name__": "somebody"}
    exec(compile("def theirs(): pass", "/their/file.py", "exec"), namespace)
    assert wrappers.describe(namespace["theirs"]) == "somebody.theirs of /their/file.py"
