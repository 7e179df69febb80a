"""A thread that calls while patches go on and off sees all of one or nothing, and never waits."""

import pytest
from throwaway import Throwaway

import tiers

SCRIPT = """
from sglang_perf_patches.live import threads as switching
import sglang.srt.a as a, sglang.srt.b as b

cycles, least = int(os.environ["CYCLES"]), int(os.environ["CALLS"])
sys.setswitchinterval(1e-5)

# Two patches that share Caller.call. What a call returns shows each place of each, twice.
def one(patching):
    patching.override(f"{A}:Worker.step", lambda inner: lambda self, x: inner(self, x) + 100)
    def call(inner):
        return lambda self, x: inner(self, x) + a.Worker().step(0) + 10**6
    patching.override(f"{B}:Caller.call", call)
def two(patching):
    patching.override(f"{A}:helper", lambda inner: lambda x, **more: inner(x, **more) + 10**4)
    def call(inner):
        return lambda self, x: inner(self, x) + sum(a.helper(0) for _ in range(2)) + 10**7
    patching.override(f"{B}:Caller.call", call)
use(
    declare("one.parts", install=one, targets=(f"{A}:Worker.step", f"{B}:Caller.call")),
    declare("two.parts", install=two, targets=(f"{A}:helper", f"{B}:Caller.call")),
)
ONE, TWO = 100 + 101 + 10**6, 2 * 10**4 + 10**7
WHOLE = {2, 2 + ONE, 2 + TWO, 2 + ONE + TWO}
over, calls, seen, longest = False, [0, 0], [set(), set()], [0.0, 0.0]

def call(number):
    caller = b.Caller()
    while not over:
        began = time.perf_counter()
        seen[number].add(caller.call(1))
        longest[number] = max(longest[number], time.perf_counter() - began)
        calls[number] += 1

threads = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(2)]
for thread in threads:
    thread.start()
def wait_for_calls():
    before = list(calls)
    while not all(now > then + 1 for now, then in zip(calls, before)):
        assert all(thread.is_alive() for thread in threads), "a call has failed"
        time.sleep(1e-4)

# How long a try keeps every other thread from running, in seconds of CPU: a busy machine makes any
# call long, but not this.
slices, in_one_call = [], switching._in_one_call
def timed(codes, steps):
    began = time.thread_time()
    try:
        return in_one_call(codes, steps)
    finally:
        slices.append(time.thread_time() - began)
switching._in_one_call = timed
if os.environ.get("GIVES_UP"):      # as a signal handler may, at any line of this thread
    lines = 0
    def trace(frame, event, _):
        global lines
        if frame.f_code.co_filename != switching.__file__:
            return None
        lines += event == "line"
        if event == "line" and not lines % 7:
            time.sleep(1e-5)
        return trace
    sys.settrace(trace)
done = 0
while done < cycles or sum(calls) < least:
    while not all_live():
        pass
    wait_for_calls()
    if done % 3:
        single = ("one.parts", "two.parts")[done % 3 - 1]
        while engine.report().of(single).state == "live":
            take_off(single)
        wait_for_calls()
    ours.deactivate()
    while engine.report() is not None:
        ours.deactivate()
    done += 1
over = True
sys.settrace(None)
for thread in threads:
    thread.join()
assert set().union(*seen) <= WHOLE, set().union(*seen) - WHOLE
assert len(set().union(*seen)) == 4, seen
assert abs(sys.getswitchinterval() - 1e-5) < 1e-9
print(done, sum(calls), round(max(slices) * 1000, 2), round(max(longest) * 1000, 1))
"""


def test_no_thread_sees_half_of_a_patch(throwaway: Throwaway, pytestconfig: pytest.Config) -> None:
    """No switch of ours keeps a call waiting for 20 ms.

    On a host with Python's own switch interval, a try does nothing to others but this. The longest
    call, in ms, is printed and not bounded: a busy machine makes any call long.
    """
    cycles, calls = (300, 4_000_000) if tiers.is_whole(pytestconfig) else (20, 50_000)
    done = throwaway.play(SCRIPT, CYCLES=str(cycles), CALLS=str(calls))
    number_of_cycles, counted, longest_slice, _ = done.stdout.split()
    assert int(number_of_cycles) >= cycles
    assert int(counted) >= calls
    assert 0 < float(longest_slice) < 20


def test_a_signal_handler_that_gives_the_gil_up_shows_no_half(throwaway: Throwaway) -> None:
    throwaway.play(SCRIPT, CYCLES="6", CALLS="0", GIVES_UP="1")


def test_among_many_threads(throwaway: Throwaway) -> None:
    throwaway.play("""
import sglang.srt.a as a
use(STEP)
over = threading.Event()
threading.stack_size(2**17)
def stand(depth):
    return stand(depth - 1) if depth else over.wait()
threads = [threading.Thread(target=stand, args=(20,), daemon=True) for _ in range(800)]
for thread in threads:
    thread.start()
for _ in range(3):
    assert all_live(), engine.report()
    assert a.Worker().step(1) == 102
    ours.deactivate()
    assert engine.report() is None and a.Worker().step(1) == 2
over.set()
for thread in threads:
    thread.join(200)
""")


PARTS = """
import sglang.srt.a as a, sglang.srt.b as b
between = lambda: None
def parts(patching):
    def step(inner):
        def step(self, x):
            between()
            return inner(self, x) + a.helper(0)
        return step
    patching.override(f"{A}:Worker.step", step)
    installs.helper(patching)
parts = declare("one.parts", install=parts, targets=(f"{A}:Worker.step", f"{A}:helper"))
"""
"""A patch whose method calls the function that it also changes, after `between`."""


def test_a_call_that_has_begun_ends_with_what_it_began_with(throwaway: Throwaway) -> None:
    """The patch stays on as a whole; one that depends on nothing of it comes off at once."""
    done = throwaway.play(f"""{PARTS}
inside, go_on = threading.Event(), threading.Event()
def between():
    inside.set()
    go_on.wait(200)
use(parts, CALL)
assert all_live()
results = []
thread = threading.Thread(target=lambda: results.append(a.Worker().step(1)))
thread.start()
assert inside.wait(200)
ours.deactivate()
state = engine.report().of("one.parts")
assert state.state == "live" and "until no thread is inside it" in state.reason, state
assert engine.report().of("two.call").state == "off"
assert a.helper(0) == 1000                  # on, whole
go_on.set()
thread.join(200)
assert results == [2 + 1000], results
wait_until(lambda: engine.report() is None)     # the tick does it
assert a.helper(0) == 0 and a.Worker().step(1) == 2
""")
    assert "deactivate() waits: one.parts until no thread is inside it" in done.stderr


def test_taken_off_from_inside_of_its_own_call(throwaway: Throwaway) -> None:
    throwaway.play(f"""{PARTS}
use(parts)
assert all_live()
between = ours.deactivate
assert a.Worker().step(1) == 1002
ours.deactivate()
assert engine.report() is None and a.Worker().step(1) == 2 and a.helper(0) == 0
""")


def test_without_a_gil_nothing_is_switched(throwaway: Throwaway) -> None:
    """There a look at other threads tells nothing. A patch waits, and says for what."""
    throwaway.play("""
import sglang.srt.a as a
use(STEP)
sys._is_gil_enabled = lambda: False
state = ours.activate("all").of("one.step")
assert (state.state, state.reason) == ("pending", "it waits until this Python has a GIL"), state
assert a.Worker().step(1) == 2
sys._is_gil_enabled = lambda: True      # as an extension may enable it
assert all_live() and a.Worker().step(1) == 102
""")
