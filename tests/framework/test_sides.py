"""What the measurements by turns show: stock's and ours, as often as is asked."""

from __future__ import annotations

from pathlib import Path

from throwaway import Throwaway

PROBE = Path(__file__).parents[1] / "harness" / "probe" / "sides.py"


def test_stock_s_and_ours_by_turns(throwaway: Throwaway) -> None:
    throwaway.put("sides.py", PROBE.read_text())
    throwaway.run(
        """
        from throwaway_patches import *
        import sglang_perf_patches as ours
        import sglang.srt.a as a, sglang.srt.b as b, sides
        use(STEP, TEN, BOTH, HELPER)
        stock = a.Worker.__dict__["step"]
        assert {each.state for each in ours.activate("all").patches} == {"live"}
        extra, step, use = a.Worker.extra, a.Worker().step(1), b.use(3)
        shown = sides.Sides()
        for _ in range(3):
            shown.show()
            assert a.Worker.__dict__["step"] is stock and not hasattr(a.Worker, "extra")
            assert (a.Worker().step(1), b.use(3)) == (2, 6)
            shown.show(["one.ten"])
            assert a.Worker().step(1) == 2 + 100 + 100 and b.use(3) == use != 6
            shown.show([])
            assert (a.Worker.extra, a.Worker().step(1), b.use(3)) == (extra, step, use)
        ours.deactivate()
        assert a.Worker().step(1) == 2 and b.use(3) == 6
        """
    )
