"""Beside a second plugin: sglang's loader and HookRegistry, both orders, and plain assignment.

The loader and the registry are the released ones; both plugins are distributions with entry points.
"""

import os

import pytest
from throwaway import REPOSITORY, Throwaway, plugins, strictly

LAUNCH = """
import logging
import sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
from throwaway_patches import *
use(STEP, BOTH, HELPER)
if {early}:
    import sglang.srt.a, sglang.srt.b
from sglang.srt.plugins import load_plugins
load_plugins()
import sglang.srt.a as a, sglang.srt.b as b
import sglang_perf_patches as ours
report = ours.activate()
step, both, helper = report.patches
print(report)
"""

REGISTER = """
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
def load():
    {}
    HookRegistry.register("sglang.srt.a.{}", theirs, HookType.{})
"""
REPLACE_METHOD = REGISTER.format("theirs = lambda self, x: -x", "Worker.step", "REPLACE")
THEIR_CLASS = """from sglang.srt.a import Worker
    class theirs(Worker):
        def step(self, x):
            return -super().step(x)"""
REPLACE_CLASS = REGISTER.format(THEIR_CLASS, "Worker", "REPLACE")
THEIR_WRAPPER = "theirs = lambda original, *a, **k: original(*a, **k) + 7"
WRAP_METHOD = REGISTER.format(THEIR_WRAPPER, "Worker.step", "AROUND")
WRAP_FUNCTION = REGISTER.format(THEIR_WRAPPER, "helper", "AROUND")
ASSIGN = """
def theirs(self, x):
    return -x
def load():
    import sglang.srt.a
    sglang.srt.a.Worker.step = theirs
"""
ASSIGN_WRAPPER = """
import functools
def load():
    import sglang.srt.a
    stock = sglang.srt.a.Worker.step
    @functools.wraps(stock)
    def theirs(self, x):
        return stock(self, x) + 7
    sglang.srt.a.Worker.step = theirs
"""


@pytest.fixture(params=["0.5.11", "0.5.23"])
def with_loader(request: pytest.FixtureRequest, throwaway: Throwaway) -> Throwaway:
    throwaway.lend_plugin_loader(request.param)
    return throwaway


@pytest.fixture(params=["ours first", "theirs first"])
def order(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["modules imported before", "modules imported later"])
def launch(request: pytest.FixtureRequest) -> str:
    return LAUNCH.format(early=request.param.endswith("before"))


def path(throwaway: Throwaway, plugin: str, order: str) -> str:
    places = plugins(throwaway.site.parent, plugin)
    if order == "theirs first":
        places.reverse()
    return os.pathsep.join(map(str, [*places, throwaway.site, REPOSITORY / "src"]))


@pytest.mark.parametrize("plugin", [WRAP_METHOD, ASSIGN_WRAPPER], ids=["registered", "assigned"])
def test_a_wrapper_is_named(with_loader: Throwaway, order: str, launch: str, plugin: str) -> None:
    script = """
assert {s.state for s in report.patches} == {"live"}
assert a.Worker().step(1) == 1 + 1 + 100 + 100 + 7
assert "wrapped by their" in step.reason and "their-plugin" in step.reason, step
assert "their-plugin" in both.reason and not helper.reason
ours.deactivate()
assert a.Worker().step(1) == 2 + 7                  # theirs stays, ours is gone from inside
"""
    with_loader.run(launch + script, PYTHONPATH=path(with_loader, plugin, order))


@pytest.mark.parametrize(
    ("plugin", "whose", "result"),
    [
        (REPLACE_METHOD, "their-plugin", -1),
        (REPLACE_CLASS, "their-plugin", -2),
        (ASSIGN, "their.theirs of their-plugin", -1),
    ],
    ids=["method", "class", "assigned"],
)
def test_a_replacement_wins_and_is_named(
    with_loader: Throwaway, order: str, launch: str, plugin: str, whose: str, result: int
) -> None:
    script = f"""
assert (step.state, both.state, helper.state) == ("conflict", "conflict", "live")
assert {whose!r} in step.reason, step
assert a.Worker().step(1) == {result}              # theirs over stock: nothing of ours inside
assert not hasattr(a.Worker, "extra")
assert b.Caller().call(1) in (-1, -2, 2)
assert b.use(3) == 1006
ours.deactivate()
assert a.Worker().step(1) == {result} and b.use(3) == 6
wait_for_threads()
"""
    done = with_loader.run(launch + script, PYTHONPATH=path(with_loader, plugin, order))
    assert done.stdout.count("one.step is conflict") == 1
    assert done.stdout.count("two.both is conflict") == 1


def test_strict_ends_on_a_conflict(with_loader: Throwaway, order: str, launch: str) -> None:
    # Another thread may find the conflict, so the script waits for its end.
    script = f"{launch}\nimport time\ntime.sleep(60)\nprint('served')"
    search = path(with_loader, REPLACE_METHOD, order)
    done = with_loader.process(script, PYTHONPATH=search, **strictly("one"))
    assert (done.returncode, done.stderr.strip().count("\n")) == (1, 0)
    assert "served" not in done.stdout
    assert "one.step is conflict" in done.stderr


def test_a_wrapped_module_function(with_loader: Throwaway, order: str, launch: str) -> None:
    script = """
assert helper.state == "live" and "their-plugin" in helper.reason
assert a.helper(3, scale=2) == b.use(3) == 6 + 1000 + 7
ours.deactivate()
assert a.helper(3, scale=2) == b.use(3) == 6 + 7
"""
    with_loader.run(launch + script, PYTHONPATH=path(with_loader, WRAP_FUNCTION, order))


def test_under_run_and_the_entry_point_it_happens_once(with_loader: Throwaway, launch: str) -> None:
    from sglang_perf_patches import bootstrap

    both_ways = path(with_loader, WRAP_METHOD, "ours first")
    done = with_loader.run(
        launch + "\nassert a.Worker().step(1) == 209, a.Worker().step(1)\n",
        PYTHONPATH=os.pathsep.join([str(bootstrap.FOLDER), both_ways]),
    )
    assert "wrapped by their" in done.stdout
