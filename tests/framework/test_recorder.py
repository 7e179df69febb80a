"""The recorder goes on, whatever fails in it; a server's own metrics have what it records."""

import re
import sys
from pathlib import Path

import pytest
from throwaway import REPOSITORY, Throwaway, strictly

RECORDED = """
import json
from sglang_perf_patches.telemetry import procfs, recorder, records
recorder._TICK_S = 0.1
use(STEP)
said, lines = [], []
class Lines(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
        if record.levelno >= logging.WARNING:
            lines.append(record.getMessage())
logger = logging.getLogger("sglang_perf_patches")
logger.addHandler(Lines())

def record():
    path = recorder._recorders[0].path
    return json.loads(path.read_text()) if path.exists() else None

def undone():
    a.Worker.step = lambda self, x: x
    wait_until(lambda: (record() or {"patches": [{}]})["patches"][0].get("state") == "conflict")
"""

BROKEN = {
    "multiprocessing that is being imported": (
        "sys.modules['multiprocessing'] = type(sys)('multiprocessing')"
    ),
    "a file with an odd name": "(folder / f'{procfs.namespace()}-\\u00b2-1.json').touch()",
    "a deep record": "(folder / f'{records.name_of(os.getppid())}.json').write_text('[' * 100_000)",
    "an announcement": "mine.announce = lambda data: 1 / 0",
    "metrics": "recorder._export = lambda *_: sys.exit()",
    "a sweep": "mine.sweep, mine.has_forked = (lambda: 1 / 0), True",
    "a fork": "child = os.fork()\nif not child: os._exit(0)\nos.waitpid(child, 0)",
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_task_stops_no_other_and_no_next_tick(throwaway: Throwaway, broken: str) -> None:
    throwaway.play(f"""{RECORDED}
warnings.simplefilter("ignore")
import sglang.srt.a as a
ours.activate()
(mine,) = recorder._recorders
folder = mine.path.parent
{BROKEN[broken]}
time.sleep(0.3)
undone()
said = [line for line in lines if "the record is not kept" in line]
assert len(said) <= 1, lines
""")


@pytest.mark.parametrize(
    ("owner", "name", "error", "said"),
    [
        ("recorder._recorders[0]", "look_again", "MemoryError", "MemoryError: no room"),
        ("type(recorder._recorders[0].path)", "exists", "OSError", "`status` will not show "),
    ],
)
def test_what_fails_on_each_tick_is_said_once(
    throwaway: Throwaway, owner: str, name: str, error: str, said: str
) -> None:
    throwaway.play(f"""{RECORDED}
import sglang.srt.a as a
ours.activate()
def fails(*_):
    raise {error}("no room")
works = {owner}.{name}
{owner}.{name} = fails
wait_until(lambda: lines)
time.sleep(0.3)
assert len(lines) == 1 and {said!r} in lines[0], lines
{owner}.{name} = works
undone()
""")


@pytest.mark.parametrize("strict", ["", "1"])
def test_without_its_thread_the_patches_are_live(throwaway: Throwaway, strict: str) -> None:
    script = """
start = threading.Thread.start
def refuses(self):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refuses
import sglang.srt.a as a
from sglang_perf_patches import plugin
plugin.load()
assert engine.report().of("one.step").state == "live" and a.Worker().step(1) == 102
assert len(lines) == 1 and "the record is not kept" in lines[0], lines
assert "can't start new thread" in lines[0]
assert record() is None             # nothing would keep it true
plugin.load()
threading.Thread.start = start
time.sleep(0.2)
ours.activate()
wait_until(record)
assert record()["patches"][0]["state"] == "live"
"""
    variables = strictly("one.step") | {"SGLANG_PERF_PATCHES_STRICT": strict}
    throwaway.play(RECORDED + script, **variables)


ISOLATED = """
import sys
import _xxsubinterpreters as interpreters
script = '''
import logging, sys
logging.basicConfig()
sys.path[:0] = %r
from throwaway_patches import *
use(STEP)
import sglang.srt.a as a
from sglang_perf_patches import plugin
plugin.load()
from sglang_perf_patches.live import engine
assert engine.report().of("one.step").state == "live" and a.Worker().step(1) == 102
'''
made = interpreters.create(isolated=True)
interpreters.run_string(made, script % sys.path)
interpreters.destroy(made)
"""


@pytest.mark.skipif("sys.version_info >= (3, 12)", reason="wrapt can't be imported there")
def test_a_subinterpreter_without_threads_has_live_patches(throwaway: Throwaway) -> None:
    done = throwaway.run(ISOLATED, **strictly("one.step"))
    (line,) = done.stderr.splitlines()
    assert "the record is not kept" in line


FORKS = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")
from types import SimpleNamespace
from sglang_perf_patches.model.state import PatchState, Report
from sglang_perf_patches.telemetry import recorder
recorder._TICK_S = 0.2
looks = []
report = Report("all", "1.0", (PatchState("one.step", "live", "", False),))
recorder.keep(lambda: report, lambda: looks.append(1))
for _ in range(8):
    child = os.fork()
    if not child:
        os._exit(recorder._recorders[0].has_thread() or recorder._recorders[0].path is not None)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    time.sleep(0.06)
assert recorder._recorders[0].has_thread()
assert len(looks) >= 2, looks     # forks don't keep it from its work
"""


def test_forks_do_not_keep_the_thread_from_its_work(throwaway: Throwaway) -> None:
    """A child has neither a thread nor a record of its own."""
    pyenv = (Path.home() / ".pyenv" / "versions").glob("3.1[2-9].*/bin/python")
    for python in (Path(sys.executable), *pyenv):
        done = throwaway.execute(python, "-c", FORKS, PYTHONPATH=str(REPOSITORY / "src"))
        assert (done.returncode, done.stderr) == (0, ""), (python, done.stderr)


def test_a_process_in_which_all_is_gated_says_so_once(throwaway: Throwaway) -> None:
    """An Engine without an HTTP server; what goes live later has its line as well."""
    throwaway.play(f"""{RECORDED}
use(dataclasses.replace(STEP, proven_with={{}}), HELPER)
logger.setLevel(logging.INFO)
from sglang_perf_patches.live import published
published.published = lambda: gated
class gated:
    read = staticmethod(lambda name: True if name == "enable_lora" else None)
    unlike_default = staticmethod(dict)
import sglang
ours.activate()
wait_until(lambda: len(said) > 1)
time.sleep(1)
[cause, line] = said
assert cause.endswith("gated by LoRA: one.step"), cause
assert "live 0, pending 1, refused 0, gated 1; live on sglang " in line, line
assert line.endswith("none; gated by LoRA: one.step"), line
import sglang.srt.a
wait_until(lambda: len(said) == 3)
assert ": two.helper; gated by" in said[2], said
""")


METERED = """
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
    script = throwaway.put("server.py", METERED)
    done = throwaway.run(
        f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')",
        PROMETHEUS_MULTIPROC_DIR=str(folder),
        SGLANG_PERF_PATCHES="all",
    )
    launcher, *workers = (int(pid) for pid in done.stdout.splitlines()[0].split()[1:])
    line = r'^sglang_perf_patches_(live|ran)\{patch="([^"]*)",pid="(\d+)"\} (.*)$'
    found = re.findall(line, done.stdout, re.MULTILINE)
    series = {(name, id, int(pid)): float(value) for name, id, pid, value in found}
    expected: dict[tuple[str, str, int], float] = {}  # the policy was not chosen, and has no series
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
