"""Stock's code by turns with ours, as measurements show them (`rig/injected/pausing.py`)."""

from __future__ import annotations

from pathlib import Path

from throwaway import Throwaway

INJECTED = Path(__file__).parents[1] / "benchmarks" / "rig" / "injected"
START = f"""
sys.path.append({str(INJECTED)!r})
from pausing import paused
import sglang.srt.a as a, sglang.srt.b as b
"""


def test_stock_and_ours_by_turns(throwaway: Throwaway) -> None:
    throwaway.play(
        START
        + """
def holds(patching):
    installs.step(patching)
    patching.drain(lambda: False, "never: the caller answers for it")

installs.holds = holds
needs = declare("two.needs", install="helper", targets=(f"{A}:helper",), requires=("one.step",))
use(TEN, declare("one.step", install="holds", targets=(f"{A}:Worker.step",)), needs)
stock = a.Worker.__dict__["step"]
assert {each.state for each in ours.activate("all").patches} == {"live"}
patched, used = a.Worker.__dict__["step"], b.use(3)
for _ in range(3):
    with paused() as off:
        assert off == {"one.step", "one.ten", "two.needs"}
        assert a.Worker.__dict__["step"] is stock and (a.Worker().step(1), b.use(3)) == (2, 6)
        engine.look_again()
        assert a.Worker.__dict__["step"] is stock
    with paused("one.step") as off:
        assert off == {"one.step", "two.needs"} and (a.Worker().step(1), b.use(3)) == (20, 6)
    assert a.Worker.__dict__["step"] is patched and b.use(3) == used == 1006
    assert {each.state for each in ours.report().patches} == {"live"}
"""
    )


def test_a_call_of_another_thread_is_waited_for_and_what_is_lost_stays_off(
    throwaway: Throwaway,
) -> None:
    throwaway.play(
        START
        + """
inside, go = threading.Event(), threading.Event()

def waits(patching):
    def make(inner):
        def step(self, x):
            if x < 0:
                inside.set()
                go.wait()
            return inner(self, x) + 100
        return step
    patching.override(f"{A}:Worker.step", make)

installs.waits = waits
use(declare("one.waits", install="waits", targets=(f"{A}:Worker.step",)), HELPER)
ours.activate("all")
said = []
thread = threading.Thread(target=lambda: said.append(a.Worker().step(-1)))
thread.start()
inside.wait()
try:
    with paused(wait_s=0.3):
        raise AssertionError("it was paused in the middle of a call")
except TimeoutError:
    assert a.Worker().step(1) == 102
threading.Timer(0.3, go.set).start()
with paused(wait_s=60):
    assert a.Worker().step(1) == 2
    engine._present().take_off("one.waits")
thread.join()
assert said == [100] and a.Worker().step(1) == 2 and b.use(3) == 1006
"""
    )
