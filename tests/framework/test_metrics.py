"""The states in a server's own metrics, read as sglang's exporter reads them."""

import re
from pathlib import Path

import pytest
from throwaway import Throwaway

SERVER = """
import multiprocessing, os, re, time
from throwaway_patches import *
import sglang_perf_patches as ours

def serve(queue, end):
    import prometheus_client
    use(STEP, HELPER, POLICY)
    ours.activate()
    import sglang.srt.a as a
    a.Worker().step(1)
    queue.put(os.getpid())
    end.wait()

if __name__ == "__main__":
    import prometheus_client
    from prometheus_client import CollectorRegistry, generate_latest, multiprocess
    use(STEP, HELPER, POLICY)
    ours.activate()
    context = multiprocessing.get_context("spawn")
    queue, end = context.Queue(), context.Event()
    workers = [context.Process(target=serve, args=(queue, end)) for _ in range(2)]
    [worker.start() for worker in workers]
    print("pids", os.getpid(), *(queue.get() for _ in workers))
    deadline, values = time.monotonic() + 300, []
    # Two gauges of two patches in three processes; of the workers one patch does not run.
    while len(values) < 12 or values.count("1.0") < 6:
        assert time.monotonic() < deadline, values
        time.sleep(0.2)
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)
        text = generate_latest(registry).decode()
        values = re.findall(r"_(?:live|ran)[{].* ([01][.]0)$", text, re.M)
    print(text)
    end.set()
    [worker.join() for worker in workers]
"""


def test_every_process_is_in_the_metrics(throwaway: Throwaway, tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    script = throwaway.put("server.py", SERVER)
    done = throwaway.run(
        f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')",
        PROMETHEUS_MULTIPROC_DIR=str(folder),
        SGLANG_PERF_PATCHES="all",
    )
    launcher, *workers = (int(pid) for pid in done.stdout.splitlines()[0].split()[1:])
    line = r'^sglang_perf_patches_(live|ran)\{patch="([^"]*)",pid="(\d+)"\} (.*)$'
    found = re.findall(line, done.stdout, re.MULTILINE)
    series = {(name, id, int(pid)): float(value) for name, id, pid, value in found}
    expected = {}  # the policy was not chosen, and has no series
    for id, has_run in (("one.step", 1.0), ("two.helper", 0.0)):
        expected |= {("live", id, launcher): 0.0, ("ran", id, launcher): 0.0}
        for pid in workers:
            expected |= {("live", id, pid): 1.0, ("ran", id, pid): has_run}
    assert series == expected
    assert 'sglang_perf_patches_info{selection="all",sglang="1.0",version="' in done.stdout


@pytest.mark.parametrize("has", ["library", "folder"])
def test_without_metrics_nothing_is_written(throwaway: Throwaway, tmp_path: Path, has: str) -> None:
    script = f"""
if {has == "library"}:
    import prometheus_client
use(STEP)
import sglang.srt.a
from sglang_perf_patches.telemetry import recorder
recorder._TICK_S = 0.1
ours.activate()
time.sleep(0.5)
assert ("prometheus_client" in sys.modules) == {has == "library"}
if {has == "library"}:
    assert "sglang_perf" not in prometheus_client.generate_latest().decode()
"""
    folder = str(tmp_path) if has == "folder" else None
    throwaway.play(script, PROMETHEUS_MULTIPROC_DIR=folder)
    assert not list(tmp_path.glob("*.db"))
