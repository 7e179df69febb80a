"""The recorder goes on, whatever fails in it, and what it observes does not notice."""

import sys
from pathlib import Path

import pytest
from throwaway import REPOSITORY, Throwaway

import tiers

RECORDED = """
import json
from sglang_perf_patches.telemetry import recorder, records
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
        "import types; sys.modules['multiprocessing'] = types.ModuleType('multiprocessing')"
    ),
    "a file with an odd name": (
        "from sglang_perf_patches.telemetry import procfs\n"
        "(recorder._recorders[0].path.parent / f'{procfs.namespace()}-\\u00b2-1.json').touch()"
    ),
    "a deep record": (
        "import sglang_perf_patches.telemetry.procfs as p\n"
        "(recorder._recorders[0].path.parent / f'{records.name_of(os.getppid())}.json')"
        ".write_text('[' * 100_000)"
    ),
    "an announcement": "recorder._recorders[0].announce = lambda data: 1 / 0",
    "metrics": "recorder._export = lambda *_: sys.exit()",
    "a sweep": (
        "recorder._recorders[0].sweep = lambda: 1 / 0; recorder._recorders[0].has_forked = True"
    ),
    "a fork": "child = os.fork()\nif not child: os._exit(0)\nos.waitpid(child, 0)",
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_task_stops_no_other_and_no_next_tick(throwaway: Throwaway, broken: str) -> None:
    throwaway.play(f"""{RECORDED}
warnings.simplefilter("ignore")
import sglang.srt.a as a
ours.activate()
{BROKEN[broken]}
time.sleep(0.3)
undone()
said = [line for line in lines if "the record is not kept" in line]
assert len(said) <= 1, lines
""")


FAILING = {
    "the look": ("recorder._recorders[0]", "look_again", "MemoryError('no room')"),
    "the folder": (
        *("type(recorder._recorders[0].path)", "exists"),
        "PermissionError(13, 'Permission denied')",
    ),
}


@pytest.mark.parametrize("what", FAILING)
def test_what_fails_on_each_tick_is_said_once(throwaway: Throwaway, what: str) -> None:
    owner, name, error = FAILING[what]
    said = "MemoryError: no room" if what == "the look" else "the record is not kept"
    throwaway.play(f"""{RECORDED}
import sglang.srt.a as a
ours.activate()
def fails(*_):
    raise {error}
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
    variables = {"SGLANG_PERF_PATCHES": "one.step", "SGLANG_PERF_PATCHES_STRICT": strict}
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
    done = throwaway.run(ISOLATED, SGLANG_PERF_PATCHES="one.step", SGLANG_PERF_PATCHES_STRICT="1")
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
    pythons = [sys.executable, *map(str, pyenv)]
    source = str(REPOSITORY / "src")
    for python in pythons:
        done = throwaway.execute(python, "-c", FORKS, PYTHONPATH=source)
        assert (done.returncode, done.stderr) == (0, ""), (python, done.stderr)


def test_a_handler_in_the_middle_of_the_standard_library_does_not_hang(
    throwaway: Throwaway, pytestconfig: pytest.Config
) -> None:
    """It may come while its thread holds a lock of an event. The default tier tries 1 of 12."""
    script = str(Path(__file__).with_name("handlers.py"))
    apart = "1" if tiers.is_whole(pytestconfig) else "12"
    done = throwaway.execute(sys.executable, script, apart)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100 / int(apart)


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
