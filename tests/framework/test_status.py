"""What ``status`` and a server's log say of running processes."""

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from running import ask, processes, serving, states, status
from throwaway import Throwaway

from linux_mlx.patience import wait_for
from sglang_perf_patches.telemetry import procfs, records


def test_status_tells_what_is_live_and_has_run(throwaway: Throwaway) -> None:
    others = {"SGLANG_PERF_PATCHES": "all,-one.bad"}
    with serving(throwaway) as one, serving(throwaway, **others) as two:
        by_pid = {process["pid"]: process for process in processes(throwaway)}
        assert set(by_pid) == {one.pid, two.pid}
        assert set(by_pid[one.pid]) == {"pid", "server", "started", "role", "sglang", "patches"}
        assert set(by_pid[one.pid]["patches"][0]) == {"id", "state", "reason", "ran"}  # type: ignore[index]
        assert by_pid[one.pid]["sglang"] == "1.0"
        assert ask(one, "step") == "102"
        assert wait_for(lambda: any(states(each)["one.step"][1] for each in processes(throwaway)))
        by_pid = {process["pid"]: process for process in processes(throwaway)}
        assert states(by_pid[one.pid]) == {"one.step": ("live", True), "one.bad": ("failed", False)}
        assert states(by_pid[two.pid]) == {"one.step": ("live", False), "one.bad": ("off", False)}
        code, text, _ = status(throwaway)
        assert code == 1  # `all` chose what failed
        assert f"process {one.pid}: live 1, pending 0, refused 0, failed 1 (1 process)" in text
        assert "one.bad is failed: ZeroDivisionError: broken on purpose" in text
        row = next(line for line in text.splitlines() if f" {one.pid} " in line)
        assert row.split() == ["python", str(one.pid), "1", "1", "one.step"]
        everything = status(throwaway, "--all")[1]
        assert re.search(r"one.step +live +has run", everything)
        assert re.search(r"one.bad +off +-", everything)  # of the other process


TREE = """
import multiprocessing, subprocess, sys, time
from throwaway_patches import *
import sglang_perf_patches as ours

is_named = "--port=31234" in sys.argv

def serve(number, queue):
    import sglang.srt.a as a
    use(STEP)
    ours.activate()
    if number == 3:
        a.Worker().step(1)
    if is_named:
        multiprocessing.current_process().name = f"scheduler_TP{number}"
    queue.put("up")
    time.sleep(600)

if __name__ == "__main__":
    if "between" not in sys.argv:
        use(STEP)
        ours.activate()
        # A process between, as a data-parallel controller is that loads no plugins.
        command = [sys.executable, *sys.argv, "between"]
        between = subprocess.Popen(command, stdout=subprocess.PIPE)
        print("up", between.stdout.readline().decode(), sep="\\n", flush=True)
        time.sleep(600)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    numbers = range(4 if is_named else 2)
    processes = [context.Process(target=serve, args=(number, queue)) for number in numbers]
    [process.start() for process in processes]
    [queue.get() for _ in processes]
    print(*(process.pid for process in processes), flush=True)
    processes[0].join()
"""


def test_servers_are_told_apart(throwaway: Throwaway) -> None:
    script = throwaway.put("tree.py", TREE)
    with (
        serving(throwaway, script, stderr=subprocess.DEVNULL) as one,
        serving(throwaway, script, stderr=subprocess.DEVNULL) as other,
    ):
        expected = {each.pid: {each.pid, *map(int, ask(each).split())} for each in (one, other)}

        def by_server() -> dict[Any, set[Any]]:
            pids: dict[Any, set[Any]] = {}
            for process in processes(throwaway):
                pids.setdefault(process["server"], set()).add(process["pid"])
            return pids

        assert by_server() == expected
        assert all(len(members) == 3 for members in expected.values())
        _, text, _ = status(throwaway)
        lines = text.splitlines()
        first, second = sorted(expected)
        heads = [line for line in lines if line.startswith("process ")]
        assert heads == [
            f"process {pid}: live 1, pending 0, refused 0 (3 processes)" for pid in (first, second)
        ]
        place = lines.index(heads[1])
        shown = [
            {int(word) for line in part for word in line.split() if re.fullmatch("[0-9]{2,}", word)}
            for part in (lines[2:place], lines[place + 2 :])
        ]
        assert shown == [expected[first], expected[second]]

        # The workers of a launcher that was killed still belong together.
        one.kill()
        one.wait()
        expected[one.pid] -= {one.pid}
        assert by_server() == expected
        counted = "live 1, pending 0, refused 0 (2 processes, its launcher has ended)"
        assert f"process {one.pid}: {counted}" in status(throwaway)[1]


@pytest.mark.parametrize(
    ("chosen", "how", "code"),
    [
        *(("one.bad", "gates", 1), ("one", "gates", 1), ("all", "gates", 1), ("all", "breaks", 1)),
        *(("one.step", "gates", 0), ("all,-one.bad", "breaks", 0)),
    ],
)
def test_exit_code_1_tells_that_a_chosen_patch_does_not_do_its_work(
    throwaway: Throwaway, chosen: str, how: str, code: int
) -> None:
    """Whether its name chose it, or ``all``."""
    with serving(throwaway, SGLANG_PERF_PATCHES=chosen, BAD=how):
        word = {"gates": "gated", "breaks": "failed"}[how] if code else "off"
        assert wait_for(lambda: states(processes(throwaway)[0])["one.bad"][0] == word)
        found, text, _ = status(throwaway)
        assert found == code
        assert (f"one.bad is {word}" in text) == bool(code)


def test_what_a_record_says_does_not_steer_the_terminal(throwaway: Throwaway) -> None:
    folder = throwaway.runtime / "sglang-perf-patches"
    folder.mkdir(mode=0o700)
    evil = "a\x1b]0;title\x07\x9b2J\u202e\nserver 1: live 9"
    patch = {"id": evil, "state": "failed", "reason": evil, "ran": False}
    data = {"pid": os.getpid(), "server": f"x-{os.getpid()}-1", "started": 1.0, "role": evil}
    data |= {"sglang": evil, "selection": evil, "image": "", "prefix": "", "patches": [patch]}
    (folder / f"{records.name_of(os.getpid())}.json").write_text(json.dumps(data))
    for number in ("\u00b2", "\x1b[2J", "1\n2", "9" * 40, ""):
        (folder / f"{procfs.namespace()}-{number}-1.json").write_text("{}")
    for words in ((), ("--all",), ("--json",)):
        code, out, err = status(throwaway, *words)
        assert code == 0, err
        assert "a\\x1b]0;title\\x07" in out.replace("\\\\", "\\")
        assert not set(out + err) & set("\x1b\x07\x9b\u202e")
        assert len([line for line in err.splitlines() if "is not named as a record" in line]) == 5
        assert len(err.splitlines()) == 5


def test_one_line_of_information_and_one_warning(throwaway: Throwaway, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as file, serving(throwaway, stderr=file) as process:
        assert wait_for(lambda: "live on" in log.read_text())
        time.sleep(0.5)  # for a line too many
    ours = [line for line in log.read_text().splitlines() if "sglang-perf-patches" in line]
    assert len(ours) == 2, ours
    assert "one.bad is failed" in ours[0]
    assert f"process {process.pid}: live 1, pending 0, refused 0, failed 1; " in ours[1]
    assert ours[1].endswith("live on sglang 1.0: one.step")


def test_identical_ranks_are_one_line(throwaway: Throwaway) -> None:
    script = throwaway.put("tree.py", TREE)
    with serving(
        throwaway, script, "--model-path", "me/tiny", "--port=31234", stderr=None
    ) as server:

        def are_named() -> bool:
            """A rank is named after its record is made; the next tick writes the name."""
            found = processes(throwaway)
            named = [each for each in found if str(each["role"]).startswith("scheduler")]
            return len(named) == 4 and any(states(each)["one.step"][1] for each in named)

        assert wait_for(are_named)
        text = status(throwaway)[1]
        lines = text.splitlines()
        assert lines[0] == (
            f"server {server.pid} (me/tiny, port 31234): live 1, pending 0, refused 0 (5 processes)"
        )
        assert lines[1].startswith("  sglang 1.0, since ")
        named = {"pid": server.pid, "is_server": True, "model": "me/tiny", "port": 31234}
        assert json.loads(status(throwaway, "--json")[1])["servers"] == [named]
        assert status(throwaway, str(server.pid))[1] == text
        no_server = "sglang-perf-patches: process 1 started no server with these patches\n"
        assert status(throwaway, "1") == (1, "", no_server)
        gone = "sglang-perf-patches: no process 99999999\n"
        assert status(throwaway, str(server.pid), "99999999") == (1, text, gone)
        assert lines[2].split() == ["PROCESS", "PID", "LIVE", "HAVE", "RUN", "WHICH"]
        (ranks,) = [line for line in lines if "scheduler" in line]
        assert ranks.startswith("  scheduler_TP0 ... scheduler_TP3 (4)  ")
        assert ranks.split()[-3:] == ["1", "1", "one.step"]
        assert len(lines) == 5


SERVER = """
import logging, sys, threading, time, types
logging.basicConfig(level=logging.INFO)
from throwaway_patches import *
import sglang_perf_patches as ours
use(STEP, HELPER)
logged = threading.Event()
class Seen(logging.Handler):
    def emit(self, record):
        if "live on" in record.getMessage():
            logged.set()
logging.getLogger("sglang_perf_patches").addHandler(Seen())
http = types.ModuleType("sglang.srt.entrypoints.http_server")
http._global_state = None
sys.modules[http.__name__] = http
sys.argv = ["sglang", "serve"]
import __main__
__main__.__file__ = "/usr/bin/sglang"
from sglang_perf_patches.telemetry import recorder
recorder._TICK_S = 0.1
ours.activate()
time.sleep(0.5)
import sglang.srt.a
class Up: name = "Starting"
class State: tokenizer_manager = types.SimpleNamespace(server_status=Up)
http._global_state = State
time.sleep(1)
print("READY", file=sys.stderr, flush=True)
Up.name = "Up"
assert logged.wait(300)
Up.name = "UnHealthy"
time.sleep(0.5)                                     # for a line too many
Up.name = "Up"
time.sleep(0.5)
"""


def test_a_server_logs_one_line_when_it_is_ready_and_no_other(throwaway: Throwaway) -> None:
    done = throwaway.run(SERVER)
    lines = [line for line in done.stderr.splitlines() if "sglang" in line or line == "READY"]
    assert lines[0] == "READY"
    assert len(lines) == 2, lines
    assert re.fullmatch(
        r"INFO:sglang_perf_patches:sglang-perf-patches: server \d+: live 2, pending 0, refused 0; "
        r"live on sglang 1.0: one.step, two.helper",
        lines[1],
    )


GATED = """
import throwaway_installs
from sglang_perf_patches.model.patching import Gated
def gates(patching):
    raise Gated(REASONS.pop(0))
throwaway_installs.gates = gates
tensors, lora = "tensor parallelism is on (--tp-size)", "requests have priorities"
unproven = ": this patch was not tested with that"
REASONS = [tensors + unproven, lora + unproven, "it needs one.a: " + tensors + unproven]
target = (f"{A}:Worker.step",)
use(STEP, HELPER, *(declare(name, install="gates", targets=target) for name in NAMES))
"""


def test_a_server_logs_what_is_gated_once_by_its_cause(throwaway: Throwaway) -> None:
    """At boot, and again in the line of the server that is ready, though something is live."""
    names = "NAMES = ('one.a', 'one.b', 'two.c')\n"
    done = throwaway.run(SERVER.replace("use(STEP, HELPER)\n", names + GATED))
    lines = [line for line in done.stderr.splitlines() if "sglang" in line or line == "READY"]
    causes = (
        "gated by tensor parallelism: one.a, two.c",
        "gated because requests have priorities: one.b",
    )
    assert lines[:3] == [
        *(f"WARNING:sglang_perf_patches:sglang-perf-patches: {cause}" for cause in causes),
        "READY",
    ]
    assert len(lines) == 4, lines
    assert lines[3].endswith(f"; live on sglang 1.0: one.step, two.helper; {'; '.join(causes)}")


def test_status_where_all_but_the_runtime_folder_is_read_only(throwaway: Throwaway) -> None:
    with serving(throwaway) as process:
        done = throwaway.run(
            """
            import resource
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no folder takes a file
            from throwaway_patches import *
            from sglang_perf_patches.telemetry import records
            look_nowhere_else()
            print([data["pid"] for data in records.read_all()])     # a pipe is no file
            """
        )
        assert done.stdout == f"[{process.pid}]\n"
