"""STRICT: one way to end a process, one line, exit code 1, from wherever."""

import os
import signal
from contextlib import suppress

import pytest
from throwaway import Throwaway, strictly

from linux_mlx.patience import wait_for
from linux_mlx.processes import runs

HEAD = """
import importlib, sys, threading, time
from throwaway_patches import *
import sglang_perf_patches as ours
from sglang_perf_patches import plugin
bad = declare("two.bad", install="breaks", targets=(f"{A}:Worker.step", f"{B}:Caller.call"))
use(STEP, bad)

def in_a_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()

def swallowing(call):
    try:
        call()
    except BaseException:
        print("swallowed")

def both():
    importlib.import_module("sglang.srt.a")
    importlib.import_module("sglang.srt.b")
"""

WAYS = {
    "a call": "both()\nplugin.load()",
    "a call whose end is swallowed": "both()\nswallowing(plugin.load)",
    "a call in a thread": "both()\nin_a_thread(plugin.load)",
    "an import": "plugin.load()\nboth()",
    "an import whose end is swallowed": "plugin.load()\nswallowing(both)",
    "an import in a thread": "plugin.load()\nin_a_thread(both)",
    "an import, while another thread looks": (
        "from sglang_perf_patches.live import engine\n"
        "from sglang_perf_patches.live.registry import Registry\n"
        "stop = Registry.stop\n"
        "def slow(registry):\n    time.sleep(0.5)\n    return stop(registry)\n"
        "Registry.stop = slow\n"
        "plugin.load()\n"
        "thread = threading.Thread(target=both, daemon=True)\n"
        "thread.start()\n"
        "while thread.is_alive():\n    engine.look_again()"
    ),
    "an import in a pool": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "plugin.load()\n"
        "with ThreadPoolExecutor() as pool:\n    pool.submit(both).exception()"
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_failure_ends_with_one_line(throwaway: Throwaway, way: str) -> None:
    script = f"{HEAD}\nprint('begun')\n{WAYS[way]}\nprint('served')\n"
    done = throwaway.process(script, **strictly("two"))
    assert (done.returncode, done.stdout) == (1, "begun\n")
    assert done.stderr == (
        "sglang-perf-patches: two.bad is failed: ZeroDivisionError: broken on purpose\n"
    )
    assert throwaway.records() == []


@pytest.mark.parametrize("selection", ["all", "one"])
def test_what_was_not_named_may_fail(throwaway: Throwaway, selection: str) -> None:
    done = throwaway.run(f"{HEAD}\nboth()\nplugin.load()\nprint('served')", **strictly(selection))
    assert done.stdout == "served\n"


def test_what_is_undone_later_ends_it_too(throwaway: Throwaway) -> None:
    script = f"""{HEAD}
both()
import sglang.srt.a as a
plugin.load()
a.Worker.step = lambda self, x: -x
time.sleep(200)
print("served")
"""
    done = throwaway.process(script, **strictly("one"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("sglang-perf-patches: one.step is conflict: sglang.srt.a:Worker")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("way", ["plugin.load()", "in_a_thread(plugin.load)"])
def test_a_bad_selection_ends_with_one_line(throwaway: Throwaway, way: str) -> None:
    done = throwaway.process(f"{HEAD}\n{way}\nprint('served')", **strictly("tow"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "unknown set or patch 'tow': did you mean two" in done.stderr


@pytest.mark.skipif("sys.platform != 'linux'", reason="it asks /proc")
def test_what_it_started_ends_with_it(throwaway: Throwaway) -> None:
    """As in a launcher whose detokenizer has just begun, and does not watch its parent yet."""
    script = f"""{HEAD}
import multiprocessing, os

def wait():
    os.close(1)
    os.close(2)
    time.sleep(600)

child = multiprocessing.get_context("fork").Process(target=wait)
child.start()
print(child.pid, flush=True)
both()
plugin.load()
"""
    done = throwaway.process(script, **strictly("two.bad"))
    assert done.returncode == 1, done.stderr
    child = int(done.stdout)
    try:
        assert wait_for(lambda: not runs(child))
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
