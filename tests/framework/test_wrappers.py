"""Somebody else's object around stock's: a wrapper if it calls stock, otherwise a replacement."""

from __future__ import annotations

import pytest
from throwaway import Throwaway

SCRIPT = """
import functools, sys
import wrapt
from throwaway_patches import *
import sglang_perf_patches as ours
import sglang.srt.a as a

stock_helper, stock_step = a.helper, a.Worker.step

{definition}

if {on_function}:
    a.helper = theirs(stock_helper)
else:
    a.Worker.step = theirs(stock_step)
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
result = a.helper(1) if {on_function} else a.Worker().step(1)
expected = {{True: 1, False: 2}}[{on_function}]
amount = {{True: 1000, False: 100}}[{on_function}]
assert result == ((expected + amount if {state!r} == "live" else 0) + 7), result
ours.deactivate()
result = a.helper(1) if {on_function} else a.Worker().step(1)
assert result == (expected if {state!r} == "live" else 0) + 7, result
"""

OBJECTS = {
    "never calls": (
        """
class Theirs:
    def __init__(self, inner):
        functools.update_wrapper(self, inner)
    def __call__(self, *args, **named):
        return 7
    def __get__(self, instance, owner=None):
        return self
theirs = Theirs
""",
        "conflict",
        "__main__.Theirs",
    ),
    "never calls, and says so by itself": (
        """
class Theirs:
    def __init__(self, inner):
        self.__wrapped__ = inner
    def __call__(self, *args, **named):
        return 7
    def __get__(self, instance, owner=None):
        return self
theirs = Theirs
""",
        "conflict",
        "__main__.Theirs",
    ),
    "keeps it": (
        """
class Theirs:
    def __init__(self, inner):
        functools.update_wrapper(self, inner)
        self.inner = inner
    def __call__(self, *args, **named):
        return self.inner(*args, **named) + 7
    def __get__(self, instance, owner=None):
        return functools.partial(self, instance)
theirs = Theirs
""",
        "live",
        "__main__.Theirs",
    ),
    "keeps it in a slot": (
        """
class Theirs:
    __slots__ = ("inner", "__dict__")
    def __init__(self, inner):
        functools.update_wrapper(self, inner)
        self.inner = functools.partial(inner)
    def __call__(self, *args, **named):
        return self.inner(*args, **named) + 7
    def __get__(self, instance, owner=None):
        return functools.partial(self, instance)
theirs = Theirs
""",
        "live",
        "__main__.Theirs",
    ),
    "calls by way of the attribute": (
        """
class Theirs:
    def __init__(self, inner):
        functools.update_wrapper(self, inner)
    def __call__(self, *args, **named):
        return self.__wrapped__(*args, **named) + 7
    def __get__(self, instance, owner=None):
        return functools.partial(self, instance)
theirs = Theirs
""",
        "live",
        "__main__.Theirs",
    ),
    "a wrapt wrapper": (
        """
@wrapt.decorator
def theirs(wrapped, instance, args, kwargs):
    return wrapped(*args, **kwargs) + 7
""",
        "live",
        "__main__.theirs",
    ),
    "a function": (
        """
def theirs(inner):
    @functools.wraps(inner)
    def outer(*args, **named):
        return inner(*args, **named) + 7
    return outer
""",
        "live",
        "__main__.theirs",
    ),
    "a function that never calls": (
        """
def theirs(inner):
    @functools.wraps(inner)
    def outer(*args, **named):
        return 7
    return outer
""",
        "conflict",
        "__main__.theirs",
    ),
}


@pytest.mark.parametrize("where", ["function", "method"])
@pytest.mark.parametrize("kind", OBJECTS)
def test_whoever_calls_stock_is_a_wrapper(throwaway: Throwaway, kind: str, where: str) -> None:
    definition, state, whose = OBJECTS[kind]
    throwaway.run(
        SCRIPT.format(
            definition=definition, state=state, whose=whose, on_function=where == "function"
        )
    )
