"""A thread that calls while patches go on and off sees all of a patch, or nothing of it."""

from __future__ import annotations

import pytest
from throwaway import Throwaway

import tiers

SCRIPT = """
import faulthandler, sys, threading, time
faulthandler.dump_traceback_later(500, exit=True)
from throwaway_patches import *
import throwaway_installs
import sglang_perf_patches as ours
from sglang_perf_patches.live import engine
import sglang.srt.a as a, sglang.srt.b as b

cycles, least = int(sys.argv[1]), int(sys.argv[2])
sys.setswitchinterval(1e-5)

# A call of the patch's shows each of its three parts, one of them from inside of a generator.
def parts(patching):
    patching.override(f"{A}:Worker.step", lambda inner: lambda self, x: inner(self, x) + 100)
    patching.override(f"{A}:helper", lambda inner: lambda x, **more: inner(x, **more) + 1000)
    def call(inner):
        def call(self, x):
            return inner(self, x) + sum(a.helper(0) for _ in range(2)) + 7
        return call
    patching.override(f"{B}:Caller.call", call)

throwaway_installs.parts = parts
targets = (f"{A}:Worker.step", f"{A}:helper", f"{B}:Caller.call")
use(declare("one.parts", install="parts", targets=targets))
over, calls, seen = False, [0, 0], [set(), set()]

def call(number):
    caller = b.Caller()
    while not over:
        seen[number].add(caller.call(1))
        calls[number] += 1

threads = [threading.Thread(target=call, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
done = 0
while done < cycles or sum(calls) < least:
    while engine.activate("all").of("one.parts").state != "live":
        pass
    before = list(calls)
    while not all(now > then + 1 for now, then in zip(calls, before)):
        time.sleep(1e-4)        # each thread makes a call of the patch's
    ours.deactivate()
    while engine.report() is not None:
        ours.deactivate()
    done += 1
over = True
for thread in threads:
    thread.join()
assert seen == [{2, 2109}, {2, 2109}], seen
print(done, sum(calls))
"""


def test_no_thread_sees_half_of_a_patch(throwaway: Throwaway, pytestconfig: pytest.Config) -> None:
    cycles, calls = (300, 4_000_000) if tiers.is_whole(pytestconfig) else (60, 100_000)
    path = throwaway.put("script.py", SCRIPT)
    done = throwaway.run(
        f"import runpy, sys; sys.argv = ['', '{cycles}', '{calls}']\n"
        f"runpy.run_path({str(path)!r}, run_name='__main__')"
    )
    number_of_calls, counted = map(int, done.stdout.split())
    assert number_of_calls >= cycles
    assert counted >= calls


WAITS = """
import faulthandler, threading, time
faulthandler.dump_traceback_later(60, exit=True)
from throwaway_patches import *
import throwaway_installs
import sglang_perf_patches as ours
from sglang_perf_patches.live import engine
import sglang.srt.a as a, sglang.srt.b as b

inside, go_on = threading.Event(), threading.Event()
def parts(patching):
    def step(inner):
        def step(self, x):
            inside.set()
            go_on.wait(30)
            return inner(self, x) + a.helper(0)
        return step
    patching.override(f"{A}:Worker.step", step)
    patching.override(f"{A}:helper", lambda inner: lambda x, **more: inner(x, **more) + 1000)
throwaway_installs.parts = parts
use(declare("one.parts", install="parts", targets=(f"{A}:Worker.step", f"{A}:helper")))
assert ours.activate("all").of("one.parts").state == "live"
results = []
thread = threading.Thread(target=lambda: results.append(a.Worker().step(1)))
thread.start()
assert inside.wait(30)
"""


def test_a_call_that_has_begun_ends_with_what_it_began_with(throwaway: Throwaway) -> None:
    done = throwaway.run(
        WAITS
        + """
ours.deactivate()
state = engine.report().of("one.parts")
assert state.state == "live" and "until no thread is in a call of it" in state.reason, state
start = time.monotonic()
assert a.helper(0) == 1000                  # on, whole
assert time.monotonic() - start < 1
go_on.set()
thread.join(30)
assert results == [2 + 1000], results
deadline = time.monotonic() + 20
while engine.report() is not None:          # the tick does it
    assert time.monotonic() < deadline, engine.report()
    time.sleep(0.05)
assert a.helper(0) == 0 and a.Worker().step(1) == 2
"""
    )
    assert "deactivate() waits: one.parts until no thread is in a call of it" in done.stderr


def test_taken_off_from_inside_of_its_own_call(throwaway: Throwaway) -> None:
    throwaway.run(
        """
        from throwaway_patches import *
        import throwaway_installs
        import sglang_perf_patches as ours
        from sglang_perf_patches.live import engine
        import sglang.srt.a as a, sglang.srt.b as b
        def parts(patching):
            def step(inner):
                def step(self, x):
                    ours.deactivate()
                    return inner(self, x) + a.helper(0)
                return step
            patching.override(f"{A}:Worker.step", step)
            patching.override(f"{A}:helper", lambda inner: lambda x, **m: inner(x, **m) + 1000)
        throwaway_installs.parts = parts
        use(declare("one.parts", install="parts", targets=(f"{A}:Worker.step", f"{A}:helper")))
        ours.activate("all")
        assert a.Worker().step(1) == 1002
        ours.deactivate()
        assert engine.report() is None and a.Worker().step(1) == 2 and a.helper(0) == 0
        """
    )
