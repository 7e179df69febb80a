"""Patched code looks, compiles, pickles and fails as the code it replaces."""

import pytest
from throwaway import BEGINNING, Throwaway

import released


def test_functions_and_methods(throwaway: Throwaway) -> None:
    throwaway.play("""
import inspect, pickle, traceback
import sglang.srt.a as a, sglang.srt.b as b
def kinds(patching):
    def step(inner):
        def ours(*args, **named):
            return inner(*args, **named) + 1
        return ours
    patching.override(f"{A}:Worker.step", step)
    patching.override(
        f"{A}:Worker.fixed", lambda inner: staticmethod(lambda *args: inner(*args) + 1)
    )
use(HELPER, declare("one.kinds", install=kinds, targets=(f"{A}:Worker.step", f"{A}:Worker.fixed")))

def looks():
    f, held = a.helper, vars(a.Worker)["fixed"]
    found = [
        f, inspect.getsourcelines(f)[1], f.__defaults__, f.__kwdefaults__, f.__dict__,
        f.__code__.co_filename, f.__code__.co_firstlineno, f.__code__.co_name,
        getattr(f.__code__, "co_qualname", None), f.__code__.co_varnames,
        held.__name__, held.__qualname__, held.__doc__,
    ]
    for f in (a.helper, a.Worker.step, a.Worker.fixed):
        found += f.__name__, f.__qualname__, f.__module__, f.__doc__, inspect.signature(f)
        found += inspect.getsource(f), pickle.loads(pickle.dumps(f)) is f
    return found

def failure(*args, **named):
    try:
        a.helper(*args, **named)
    except TypeError as error:
        return str(error)

stock, names = looks(), set(vars(a))
failures = [failure(), failure(1, 2), failure(1, other=2)]
assert failures[0].startswith("helper() missing")
for _ in range(2):
    assert all_live()
    assert looks() == stock
    assert [failure(), failure(1, 2), failure(1, other=2)] == failures
    assert a.helper(1) == 1001 and a.helper(x=2, scale=3) == 1006
    assert a.Worker().step(1) == 3 and a.Worker.fixed(1) == 2
    assert pickle.loads(pickle.dumps(a.Worker().step))(1) == 3
    try:
        a.helper("one", scale="two")
    except TypeError:
        entries = traceback.extract_tb(sys.exc_info()[2])
    places = [(entry.filename, entry.line) for entry in entries]
    assert any(file == a.__file__ and line.startswith("def helper(") for file, line in places)
    assert not [file for file, _ in places if "sglang_perf_patches" in file], places
    ours.deactivate()
    assert looks() == stock and set(vars(a)) == names
    assert a.helper(1) == 1 and a.Worker().step(1) == 2 and a.Worker.fixed(1) == 1
""")


UNUSUAL = '''

def generator(x):
    yield x

async def coroutine(x):
    """Await."""
    return x

class Runner:
    """Runs."""

    async def coroutine(self, x):
        return x

    def generator(self, x):
        yield x

    def first(self, x):
        return x

    second = first

def one(x):
    """Have two names."""
    return x

other = one
'''
REFUSED = {
    "generator": "generator is a coroutine or generator",
    "coroutine": "coroutine is a coroutine or generator",
    "Runner.generator": "Runner.generator is a coroutine or generator",
    "Runner.coroutine": "Runner.coroutine is a coroutine or generator",
    "Worker.name": "a property is not exchangeable",
    "Runner.first": "a:Runner.first is also Runner.second, which would change with it",
    "one": "a:one is also sglang.srt.a.other, which would change with it",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_no_patch_changes_is_refused_before_a_change(throwaway: Throwaway, kind: str) -> None:
    path = throwaway.site / "sglang" / "srt" / "a.py"
    path.write_text(path.read_text() + UNUSUAL)
    throwaway.play(f"""
import sglang.srt.a as a
placed = []
def changes(patching):
    def make(inner):
        placed.append("made")
        return lambda self, x: inner(self, x) + 100
    patching.override(f"{{A}}:Worker.step", make)
    patching.override(f"{{A}}:{kind}", lambda inner: inner)
from sglang_perf_patches.live import switch
steps = switch.Function.steps
def noted(place, value):
    placed.append(place.function.__name__)
    return steps(place, value)
switch.Function.steps = noted
use(declare("one.bad", install=changes, targets=(f"{{A}}:Worker.step", f"{{A}}:{kind}")), HELPER)
report = ours.activate("all")
assert report.of("one.bad").state == "failed", report
assert "{REFUSED[kind]}" in report.of("one.bad").reason
assert report.of("two.helper").state == "live" and a.Worker().step(1) == 2
assert "step" not in placed and "helper" in placed, placed
assert "{kind.rpartition(".")[2]}" not in placed
""")


COMPILE = """
import torch
import sglang.srt.a as a, sglang.srt.b as b

use(STEP, TEN, HELPER)
worker, x = a.Worker(), torch.ones(3)
calls = {
    "function": lambda x: a.helper(x, scale=2) + b.use(x),
    "method": lambda x: worker.step(x) + a.Worker.step(worker, x),
    "object": lambda x: b.Caller().call(x),     # makes a Worker, whose step notes that it has run
}
compiled = {
    name: torch.compile(call, backend="eager", fullgraph=True) for name, call in calls.items()
}
for live in (False, True, False, True):
    if live:
        assert all_live()
    for name, call in calls.items():
        expected = {"function": (4, 2004), "method": (4, 2040), "object": (2, 1020)}[name][live]
        assert call(x).tolist() == [expected] * 3, (name, live, call(x))
        if name != "object":        # which keeps what was compiled before
            assert compiled[name](x).tolist() == [expected] * 3, (name, live)
        torch._dynamo.reset()
        again = torch.compile(call, backend="eager", fullgraph=True)
        assert again(x).tolist() == [expected] * 3, (name, live)
    if live:
        assert ours.activate().of("one.step").ran
        ours.deactivate()
"""


COMPILING = """
import torch
import sglang.srt.a as a, sglang.srt.b as b

use(HELPER)
assert all_live()
compiling, go_on, results, failed = threading.Event(), threading.Event(), [], []

def backend(graph, inputs):
    compiling.set()
    assert go_on.wait(60)
    return graph.forward

compiled = torch.compile(lambda x: a.helper(x) + b.use(x), backend=backend)
x = torch.zeros(1)

def call():
    try:
        results.append(compiled(x).item())
    except BaseException as error:
        failed.append(repr(error))

thread = threading.Thread(target=call)
thread.start()
assert compiling.wait(60)
ours.deactivate()
state = engine.report()
go_on.set()
thread.join()
assert not failed and results == [2000.0], (failed, results)
assert state and state.of("two.helper").state == "live", state
ours.deactivate()
while engine.report() is not None:
    ours.deactivate()
assert compiled(x).item() == 0 and a.helper(1) == 1
"""


@pytest.mark.parametrize("script", [COMPILE, COMPILING], ids=["compiled", "during that"])
def test_torch_compiles_what_is_patched_as_stock(throwaway: Throwaway, script: str) -> None:
    """And a patch stays on while a caller is compiled: what was inlined has no frame to be seen."""
    place = released.tree("0.5.23")
    search = (throwaway.site, *place.search[1:])
    released.run(released.Place(place.python, search), "-c", BEGINNING + script)
