"""`paused`: stock's code by turns with ours, in all threads, while the patches stay live."""

from __future__ import annotations

from throwaway import Throwaway

START = """
import threading, time
from throwaway_patches import *
import throwaway_installs as installs
import sglang_perf_patches as ours
from sglang_perf_patches.live import engine
import sglang.srt.a as a, sglang.srt.b as b

def states():
    return {each.id: (each.state, each.reason) for each in engine.report().patches}
"""


def run(throwaway: Throwaway, script: str) -> None:
    import textwrap

    throwaway.run(START + textwrap.dedent(script))


def test_stock_and_ours_by_turns(throwaway: Throwaway) -> None:
    run(
        throwaway,
        """
        use(STEP, TEN, BOTH, HELPER)
        stock = a.Worker.__dict__["step"]
        assert {each.state for each in ours.activate("all").patches} == {"live"}
        all_four = frozenset(states())
        patched = a.Worker.__dict__["step"]
        extra, step, used = a.Worker.extra, a.Worker().step(1), b.use(3)
        for _ in range(3):
            with ours.paused() as off:
                assert off == all_four
                assert a.Worker.__dict__["step"] is stock and not hasattr(a.Worker, "extra")
                assert (a.Worker().step(1), b.use(3)) == (2, 6)
                assert states() == dict.fromkeys(off, ("live", "paused: stock's code runs"))
                engine.look_again()
                assert a.Worker.__dict__["step"] is stock
            with ours.paused("one.step", "two"):
                assert a.Worker().step(1) == 20 and b.use(3) == 6
                with ours.paused("one.ten") as off:  # what is paused already stays so
                    assert off == all_four and a.Worker().step(1) == 2
                assert a.Worker().step(1) == 20
            assert a.Worker.__dict__["step"] is patched
            assert (a.Worker.extra, a.Worker().step(1), b.use(3)) == (extra, step, used)
            assert states() == dict.fromkeys(all_four, ("live", ""))
        ours.deactivate()
        assert a.Worker.__dict__["step"] is stock and b.use(3) == 6
        """,
    )


def test_it_comes_back_as_the_same_objects(throwaway: Throwaway) -> None:
    run(
        throwaway,
        """
        made = []

        def counts(patching):
            def make(inner):
                made.append(inner)
                return lambda self, x: inner(self, x) + 100
            patching.override(f"{A}:Worker.step", make)

        installs.counts = counts
        use(STEP, declare("two.counts", install="counts", targets=(f"{A}:Worker.step",)))
        ours.activate("all")
        for _ in range(4):
            with ours.paused("one.step"):  # ours is made once more, of stock's function
                assert a.Worker().step(1) == 102
            assert a.Worker().step(1) == 202
        assert len(made) == 2
        """,
    )


def test_patches_that_need_a_paused_one_pause_too(throwaway: Throwaway) -> None:
    run(
        throwaway,
        """
        needs = declare("two.needs", install="helper", targets=(f"{A}:helper",),
                        requires=("one.step",))
        use(STEP, needs, TEN)
        ours.activate("all")
        with ours.paused("one.step") as off:
            assert off == {"one.step", "two.needs"} and b.use(3) == 6
            assert a.Worker().step(1) == 20
        """,
    )


def test_another_thread_s_call_is_waited_for(throwaway: Throwaway) -> None:
    run(
        throwaway,
        """
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
        use(declare("one.waits", install="waits", targets=(f"{A}:Worker.step",)))
        ours.activate("all")
        said = []
        thread = threading.Thread(target=lambda: said.append(a.Worker().step(-1)))
        thread.start()
        inside.wait()
        try:
            with ours.paused(wait_s=0.3):
                raise AssertionError("it was paused in the middle of a call")
        except TimeoutError as error:
            assert str(error) == "not paused within 0.3 s: a thread is in a call of them"
        assert states() == {"one.waits": ("live", "")} and a.Worker().step(1) == 102
        threading.Timer(0.3, go.set).start()
        with ours.paused(wait_s=30):
            assert a.Worker().step(1) == 2
        thread.join()
        assert said == [100] and a.Worker().step(1) == 102
        """,
    )


def test_held_work_is_waited_for_unless_the_caller_answers_for_it(throwaway: Throwaway) -> None:
    run(
        throwaway,
        """
        work = ["some"]

        def holds(patching):
            installs.step(patching)
            patching.drain(lambda: not work, "the work is done")

        installs.holds = holds
        use(declare("one.holds", install="holds", targets=(f"{A}:Worker.step",)))
        ours.activate("all")
        try:
            with ours.paused("one.holds", wait_s=0.1):
                raise AssertionError("it was paused")
        except TimeoutError as error:
            assert str(error) == "not paused within 0.1 s: one.holds: until the work is done"
        for _ in range(2):
            with ours.paused("one.holds", regardless=True):
                assert a.Worker().step(1) == 2
            assert a.Worker().step(1) == 102
        work.clear()
        with ours.paused("one.holds", wait_s=0.1):
            assert a.Worker().step(1) == 2
        assert a.Worker().step(1) == 102
        """,
    )


def test_what_is_lost_meanwhile_stays_off(throwaway: Throwaway) -> None:
    run(
        throwaway,
        """
        use(STEP, TEN, HELPER)
        ours.activate("all")
        (activation,) = engine._current
        with ours.paused():
            activation.take_off("one.ten")
            assert states()["one.ten"] == ("off", "")
        assert a.Worker().step(1) == 102 and b.use(3) == 1006
        with ours.paused("two"):
            activation.take_off("one.step")  # one that is not paused
            assert a.Worker().step(1) == 2
        assert a.Worker().step(1) == 2 and b.use(3) == 1006
        with ours.paused():
            ours.deactivate()
            assert {state for state, _ in states().values()} == {"off"} if engine.report() else True
            ours.activate("one.step")
            assert a.Worker().step(1) == 102
        assert a.Worker().step(1) == 102 and b.use(3) == 6  # a pause is of its own activation
        ours.deactivate()
        assert a.Worker().step(1) == 2
        """,
    )


def test_what_becomes_ready_meanwhile_goes_live_after_it(throwaway: Throwaway) -> None:
    throwaway.put("sglang/srt/late.py", "def late(x):\n    return x\n")
    run(
        throwaway,
        """
        def late(patching):
            patching.override("sglang.srt.late:late", lambda inner: lambda x: inner(x) + 5)

        installs.late = late
        use(STEP, declare("two.late", install="late", targets=("sglang.srt.late:late",)))
        ours.activate("all")
        with ours.paused():
            import sglang.srt.late
            engine.look_again()
            assert states()["two.late"][0] == "pending" and sglang.srt.late.late(1) == 1
        assert states()["two.late"] == ("live", "") and sglang.srt.late.late(1) == 6
        assert a.Worker().step(1) == 102
        """,
    )


def test_unknown_names_and_nothing_to_pause(throwaway: Throwaway) -> None:
    run(
        throwaway,
        """
        from sglang_perf_patches.model.selection import SelectionError
        use(STEP)
        with ours.paused() as off:
            assert off == frozenset()
        ours.activate("none")
        with ours.paused("one.step") as off:
            assert off == frozenset()
        try:
            with ours.paused("one.stepp"):
                raise AssertionError
        except SelectionError as error:
            assert "did you mean one.step" in str(error)
        """,
    )
