"""Records of running processes, and what ``status`` says about them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from throwaway import Throwaway

from linux_mlx.patience import limit_s, wait_for
from sglang_perf_patches.telemetry import procfs, records

SERVE = """
import os, sys
from throwaway_patches import *
import sglang_perf_patches as ours
how = os.environ.get("BAD", "breaks")
use(STEP, declare("one.bad", install=how, targets=(f"{A}:Worker.step", f"{B}:Caller.call")))
import logging
logging.basicConfig(level=logging.INFO)
from sglang_perf_patches.telemetry import recorder
recorder._TICK_S = 0.1
ours.activate()
import sglang.srt.a as a, sglang.srt.b
print("up", flush=True)
for line in sys.stdin:
    print(a.Worker().step(1), flush=True)
"""

STATUS = """
import sys
from throwaway_patches import *
use(STEP, declare("one.bad", install="breaks", targets=(f"{A}:Worker.step", f"{B}:Caller.call")))
from sglang_perf_patches.cli import main
look_nowhere_else()
sys.exit(main(["status", *sys.argv[1:]]))
"""


def start(
    throwaway: Throwaway, stderr: IO[str] | int = subprocess.PIPE, **variables: str | None
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE],
        env=throwaway.environment(**variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "up\n"
    return process


@contextmanager
def serving(
    throwaway: Throwaway, stderr: IO[str] | int = subprocess.PIPE, **variables: str | None
) -> Iterator[subprocess.Popen[str]]:
    """A process that serves within the context."""
    process = start(throwaway, stderr, **variables)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def status(throwaway: Throwaway, *words: str, **variables: str | None) -> tuple[int, str, str]:
    done = throwaway.execute(sys.executable, "-c", STATUS, *words, **variables)
    return done.returncode, done.stdout, done.stderr


def processes(throwaway: Throwaway, **variables: str | None) -> list[dict[str, object]]:
    _, out, _ = status(throwaway, "--json", **variables)
    listed: list[dict[str, object]] = json.loads(out)["processes"]
    return listed


def states(process: dict[str, object]) -> dict[str, tuple[str, bool]]:
    patches = process["patches"]
    assert isinstance(patches, list)
    return {patch["id"]: (patch["state"], patch["ran"]) for patch in patches}


def written(folder: Path) -> list[Path]:
    """The records in a folder; one that is being written has another name until it is whole."""
    return [path for path in folder.iterdir() if path.suffix != ".part"]


def test_status_tells_what_is_live_and_has_run(throwaway: Throwaway) -> None:
    others = {"SGLANG_PERF_PATCHES": "all,-one.bad"}
    with serving(throwaway) as one, serving(throwaway, **others) as two:
        by_pid = {process["pid"]: process for process in processes(throwaway)}
        assert set(by_pid) == {one.pid, two.pid}
        assert set(by_pid[one.pid]) == {"pid", "server", "started", "role", "sglang", "patches"}
        assert set(by_pid[one.pid]["patches"][0]) == {"id", "state", "reason", "ran"}  # type: ignore[index]
        assert by_pid[one.pid]["sglang"] == "1.0"
        assert one.stdin
        assert one.stdout
        one.stdin.write("\n")
        one.stdin.flush()
        assert one.stdout.readline() == "102\n"
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

def serve(queue):
    use(STEP)
    ours.activate()
    queue.put("up")
    time.sleep(600)

if __name__ == "__main__":
    if len(sys.argv) == 1:
        use(STEP)
        ours.activate()
        # A process between, as a data-parallel controller is that loads no plugins.
        between = subprocess.Popen([sys.executable, __file__, "between"], stdout=subprocess.PIPE)
        print(between.stdout.readline().decode().strip(), flush=True)
        time.sleep(600)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=serve, args=(queue,)) for _ in range(2)]
    [process.start() for process in processes]
    [queue.get() for _ in processes]
    print(*(process.pid for process in processes), flush=True)
    processes[0].join()
"""


def test_servers_are_told_apart(throwaway: Throwaway) -> None:
    script = throwaway.put("tree.py", TREE)
    servers = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env=throwaway.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        for _ in range(2)
    ]
    try:
        expected: dict[int, set[object]] = {}
        for server in servers:
            assert server.stdout
            expected[server.pid] = {server.pid, *map(int, server.stdout.readline().split())}

        def by_server() -> dict[int, set[object]]:
            pids: dict[int, set[object]] = {}
            for process in processes(throwaway):
                pids.setdefault(process["server"], set()).add(process["pid"])  # type: ignore[call-overload]
            return pids

        assert by_server() == expected
        assert all(len(members) == 3 for members in expected.values())
        _, text, _ = status(throwaway)
        lines = text.splitlines()
        first, second = sorted(expected)
        heads = [line for line in lines if line.startswith("process ")]
        assert heads == [
            f"process {pid}: live 0, pending 1, refused 0 (3 processes)" for pid in (first, second)
        ]
        place = lines.index(heads[1])
        shown = [
            {int(word) for line in part for word in line.split() if word.isdigit() and word != "0"}
            for part in (lines[2:place], lines[place + 2 :])
        ]
        assert shown == [expected[first], expected[second]]

        # The workers of a launcher that was killed still belong together.
        servers[0].kill()
        servers[0].wait()
        expected[servers[0].pid] -= {servers[0].pid}
        assert by_server() == expected
        assert (
            f"process {servers[0].pid}: live 0, pending 1, refused 0 "
            "(2 processes, its launcher has ended)"
        ) in status(throwaway)[1]
    finally:
        for server in servers:
            os.killpg(server.pid, signal.SIGKILL)
            server.communicate()


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


def test_a_record_goes_with_its_process(throwaway: Throwaway) -> None:
    process = start(throwaway)
    path = next((throwaway.runtime / "sglang-perf-patches").glob("*.json"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    process.communicate("", timeout=limit_s())
    assert not path.exists()
    assert status(throwaway)[0] == 0


def test_a_killed_process_is_not_shown_and_cleaned_up(throwaway: Throwaway) -> None:
    process = start(throwaway)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    folder = throwaway.runtime / "sglang-perf-patches"
    assert len(written(folder)) == 1
    assert processes(throwaway) == []
    assert list(folder.iterdir()) == []


def test_a_record_of_an_earlier_process_with_the_same_pid(throwaway: Throwaway) -> None:
    folder = throwaway.runtime / "sglang-perf-patches"
    folder.mkdir(mode=0o700)
    (folder / f"{procfs.namespace()}-{os.getpid()}-1.json").write_text(
        json.dumps({"pid": os.getpid()})
    )
    assert processes(throwaway) == []
    assert list(folder.iterdir()) == []


def test_damaged_records_are_passed_over(throwaway: Throwaway) -> None:
    folder = throwaway.runtime / "sglang-perf-patches"
    folder.mkdir(mode=0o700)
    path = folder / f"{records.name_of(os.getpid())}.json"
    whole = {"pid": os.getpid(), "server": f"x-{os.getpid()}-1", "started": 0.0, "role": "python"}
    whole |= {"sglang": "1.0", "selection": "all", "image": "", "prefix": "", "patches": []}
    damaged = [
        {**whole, "pid": os.getpid() + 1},
        {**whole, "server": "x"},
        {**whole, "server": 1.5},
    ]
    damaged += [{**whole, "patches": [0]}, {**whole, "patches": [{"id": "one.step"}]}]
    damaged += [{**whole, "started": "x"}, {k: v for k, v in whole.items() if k != "role"}]
    damaged += [{**whole, "started": odd} for odd in (float("inf"), float("nan"), 1e30, -1, "x")]
    odd = ('{"pid": 1e999}', "[" * 100_000, '{"pid": ' + "1" * 5000 + "}")
    for text in ("{", "[]", '{"pid": "x"}', "\udcff", *odd, *map(json.dumps, damaged)):
        path.write_text(text, errors="surrogateescape")
        code, out, err = status(throwaway)
        assert code == 0
        assert re.fullmatch(rf"sglang-perf-patches: {path.name} is not a record: .+\n", err), err
        assert "no running sglang process" in out
    assert path.exists()
    path.write_text(json.dumps(whole))
    assert [each["pid"] for each in processes(throwaway)] == [os.getpid()]


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


def test_a_link_in_the_folder_is_not_followed(throwaway: Throwaway, tmp_path: Path) -> None:
    with serving(throwaway) as process:
        path = next((throwaway.runtime / "sglang-perf-patches").glob("*.json"))
        assert len(processes(throwaway)) == 1
        elsewhere = tmp_path / "elsewhere.json"
        elsewhere.write_text(path.read_text())
        process.send_signal(signal.SIGSTOP)
        path.unlink()
        path.symlink_to(elsewhere)
        assert processes(throwaway) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a file to another user")
def test_a_record_of_another_user_is_not_trusted(throwaway: Throwaway) -> None:
    with serving(throwaway) as process:
        process.send_signal(signal.SIGSTOP)
        path = next((throwaway.runtime / "sglang-perf-patches").glob("*.json"))
        assert len(processes(throwaway)) == 1
        os.chown(path, 12345, 12345)
        assert processes(throwaway) == []


def test_a_half_written_record_of_a_killed_process_is_cleaned_up(throwaway: Throwaway) -> None:
    folder = throwaway.runtime / "sglang-perf-patches"
    folder.mkdir(mode=0o700)
    (folder / f"{procfs.namespace()}-{os.getpid()}-1.part").write_text("{")
    (folder / "of somebody else").write_text("")
    mine = folder / f"{records.name_of(os.getpid())}.part"
    mine.write_text("{")  # being written just now
    assert processes(throwaway) == []
    assert {path.name for path in folder.iterdir()} == {"of somebody else", mine.name}


def test_a_record_that_a_cleaner_of_temporary_files_took_comes_back(throwaway: Throwaway) -> None:
    with serving(throwaway) as process:
        folder = throwaway.runtime / "sglang-perf-patches"
        folder.rename(throwaway.runtime / "taken")  # at once: the process may be writing
        assert wait_for(
            lambda: [results["pid"] for results in processes(throwaway)] == [process.pid]
        )
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["open to all", "readable", "a link", "another user's"])
def test_a_folder_that_is_not_private_is_neither_read_nor_used(
    throwaway: Throwaway, tmp_path: Path, kind: str
) -> None:
    folder = throwaway.runtime / "sglang-perf-patches"
    target = tmp_path / "target" if kind == "a link" else folder
    target.mkdir(mode=0o700)
    if kind == "a link":
        folder.symlink_to(target)
    elif kind == "another user's":
        if os.getuid():
            pytest.skip("needs root to give a folder to another user")
        os.chown(folder, 12345, 12345)
    else:
        folder.chmod(0o777 if kind == "open to all" else 0o755)
    code, stdout, stderr = status(throwaway)
    assert (code, stderr.count("\n")) == (0, 1)
    assert "not a private folder of this user" in stderr
    assert "its records are not read" in stderr
    assert "no running sglang process" in stdout
    done = throwaway.command("doctor")
    assert "not a private folder" in done.stderr, done
    assert done.returncode != 2, done
    with serving(throwaway):
        assert list(target.iterdir()) == []


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


FORKS = """
import os, subprocess, sys, time, warnings
warnings.simplefilter("ignore")
from throwaway_patches import *
look_nowhere_else()
import sglang_perf_patches as ours
from sglang_perf_patches.telemetry import records
import sglang.srt.a as a
use(STEP)
ours.activate("all")

def shown():
    return [data["pid"] for data in records.read_all()]

def files():
    return sorted(int(path.stem.split("-")[1]) for path in records.folder_to_write().iterdir())
"""


def test_a_child_that_becomes_another_program_has_no_record(throwaway: Throwaway) -> None:
    throwaway.run(
        FORKS
        + """
child = subprocess.Popen(["sleep", "60"], preexec_fn=lambda: None)
by_hand = os.fork()
if by_hand == 0:
    os.execvp("sleep", ["sleep", "60"])
time.sleep(2.5)                                     # for a recorder to start by itself
try:
    assert files() == shown() == [os.getpid()], files()
finally:
    child.kill(), os.kill(by_hand, 9)
"""
    )


@pytest.mark.parametrize("becomes", [["sleep", "60"], [sys.executable, "-c", "input()"]])
def test_a_record_is_not_of_the_program_that_its_process_became(
    throwaway: Throwaway, becomes: list[str]
) -> None:
    throwaway.run(
        FORKS
        + f"""
going, coming = os.pipe()
waiting, _ = os.pipe()
child = os.fork()
if child == 0:
    ours.activate("all")                            # it serves, for a while
    os.write(coming, b"!")
    os.dup2(waiting, 0)
    time.sleep(1)
    os.execvp({becomes[0]!r}, {becomes!r})
os.read(going, 1)
try:
    assert set(shown()) == {{os.getpid(), child}}
    for _ in range(3000):
        if shown() == [os.getpid()]:
            break
        time.sleep(0.1)
    assert shown() == files() == [os.getpid()], files()
finally:
    os.kill(child, 9)
"""
    )


def test_a_forked_worker_of_multiprocessing_has_a_record_while_it_works(
    throwaway: Throwaway,
) -> None:
    throwaway.run(
        FORKS
        + """
import multiprocessing
context = multiprocessing.get_context("fork")
up, end = context.Event(), context.Event()

def work():
    a.Worker().step(1)
    up.set()
    end.wait()

child = context.Process(target=work, daemon=True)
child.start()
up.wait()
for _ in range(3000):
    found = {data["pid"]: data for data in records.read_all()}
    if child.pid in found and found[child.pid]["patches"][0]["ran"]:
        break
    time.sleep(0.1)
assert found[child.pid]["patches"][0]["ran"]
assert found[child.pid]["server"] == os.getpid()
end.set()
child.join()
assert files() == [os.getpid()], files()            # nobody has read in between
"""
    )


def test_a_forked_child_that_ends_without_a_word_leaves_nothing(throwaway: Throwaway) -> None:
    throwaway.run(
        FORKS
        + """
for _ in range(3):
    if os.fork() == 0:
        ours.activate("all")
        assert os.getpid() in shown()
        os._exit(0)
    os.wait()
for _ in range(3000):
    if files() == [os.getpid()]:
        break
    time.sleep(0.1)
assert files() == [os.getpid()], files()            # our own recorder has tidied up
"""
    )


def test_a_server_without_a_runtime_folder_is_seen_from_a_shell_with_one_and_back(
    throwaway: Throwaway,
) -> None:
    with serving(throwaway, XDG_RUNTIME_DIR=None) as process:
        folder = throwaway.temporary / f"sglang-perf-patches-{os.getuid()}"
        assert len(written(folder)) == 1
        assert folder.stat().st_mode & 0o777 == 0o700
        for where in ({}, {"XDG_RUNTIME_DIR": None}):
            assert [entry["pid"] for entry in processes(throwaway, **where)] == [process.pid]
    assert processes(throwaway) == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("base", ["_RUN", "_TEMPORARY"])
def test_a_server_is_seen_from_a_shell_that_names_no_folder(
    throwaway: Throwaway, tmp_path: Path, base: str
) -> None:
    """As /run/user/UID and /tmp are, for a shell without XDG_RUNTIME_DIR or with another TMPDIR."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / str(os.getuid())).mkdir(parents=True)
    runtime = str(elsewhere / str(os.getuid())) if base == "_RUN" else None
    with serving(throwaway, XDG_RUNTIME_DIR=runtime, TMPDIR=str(elsewhere)) as process:
        done = throwaway.run(
            f"""
            from throwaway_patches import *
            from sglang_perf_patches.telemetry import records
            look_nowhere_else()
            assert records.read_all() == []
            records.{base} = {str(elsewhere)!r}
            print([data["pid"] for data in records.read_all()])
            """,
            XDG_RUNTIME_DIR=None,
        )
        assert done.stdout == f"[{process.pid}]\n"


def test_a_bad_folder_that_this_shell_would_not_use_hides_nothing(throwaway: Throwaway) -> None:
    (throwaway.temporary / f"sglang-perf-patches-{os.getuid()}").mkdir(mode=0o777)
    (throwaway.temporary / f"sglang-perf-patches-{os.getuid()}").chmod(0o777)
    with serving(throwaway) as process:
        assert [entry["pid"] for entry in processes(throwaway)] == [process.pid]


def test_records_of_another_pid_namespace_are_neither_shown_nor_removed(
    throwaway: Throwaway,
) -> None:
    folder = throwaway.runtime / "sglang-perf-patches"
    folder.mkdir(mode=0o700)
    other = folder / "0badcafe-1-1.json"
    other.write_text("{}")
    old = folder / "1-1.json"  # and of a version that did not say its namespace
    old.write_text("{}")
    assert processes(throwaway) == []
    assert sorted(path.name for path in folder.iterdir()) == [other.name, old.name]
    for path in (other, old):
        os.utime(path, (time.time() - 90_000,) * 2)
    assert processes(throwaway) == []
    assert list(folder.iterdir()) == []


def test_a_sweep_of_many_records_takes_little_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir(mode=0o700)
    long_ago = time.time() - 90_000
    for number in range(5000):
        path = folder / f"0badcafe-{number}-1.json"
        path.touch()
        if number % 2:
            os.utime(path, (long_ago,) * 2)
    random.seed(1)
    for _ in range(300):
        before = len(os.listdir(folder))
        records.sweep(folder)
        assert before - len(os.listdir(folder)) <= 200
    assert len(list(folder.iterdir())) == 2500


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make a PID namespace")
def test_a_reader_in_another_pid_namespace_removes_nothing(throwaway: Throwaway) -> None:
    with serving(throwaway) as process:
        folder = throwaway.runtime / "sglang-perf-patches"
        (before,) = written(folder)
        unshare = ("unshare", "--pid", "--fork", "--mount-proc")
        done = throwaway.execute(*unshare, sys.executable, "-c", STATUS, "--json")
        if "unshare:" in done.stderr:
            pytest.skip(done.stderr)
        assert json.loads(done.stdout) == {"processes": [], "servers": []}
        assert written(folder) == [before]
        assert [entry["pid"] for entry in processes(throwaway)] == [process.pid]


def test_a_record_that_cannot_be_written_is_said_once(throwaway: Throwaway, tmp_path: Path) -> None:
    (throwaway.runtime / "sglang-perf-patches").write_text("a file, not a folder")
    log = tmp_path / "log"
    with log.open("w") as file, serving(throwaway, stderr=file) as process:
        assert wait_for(lambda: "`status` will not show" in log.read_text())
        time.sleep(0.5)  # for a line too many
    ours = [line for line in log.read_text().splitlines() if "`status` will not show" in line]
    assert len(ours) == 1, log.read_text()
    assert ours[0].startswith("WARNING:sglang_perf_patches:")
    assert f"process {process.pid}" in ours[0]


def test_sglang_serve_is_a_launcher(throwaway: Throwaway) -> None:
    script = throwaway.put(
        "bin/sglang",
        FORKS + "print(records.read_all()[0]['role'])\n",
    )
    for words, role in (("serve", "launcher"), ("bench", "sglang")):
        done = throwaway.execute(sys.executable, script, words, "--model-path", "x")
        assert done.stdout == f"{role}\n", done.stderr


RANKS = """
import multiprocessing, sys, time
from throwaway_patches import *
import sglang_perf_patches as ours

def serve(number, queue):
    import sglang.srt.a as a
    use(STEP)
    ours.activate()
    if number == 3:
        a.Worker().step(1)
    multiprocessing.current_process().name = f"scheduler_TP{number}"
    queue.put("up")
    time.sleep(600)

if __name__ == "__main__":
    use(STEP)
    ours.activate()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=serve, args=(n, queue), daemon=True) for n in range(4)]
    [worker.start() for worker in workers]
    [queue.get() for _ in workers]
    print("up", flush=True)
    time.sleep(600)
"""


def test_identical_ranks_are_one_line(throwaway: Throwaway, tmp_path: Path) -> None:
    script = throwaway.put("ranks.py", RANKS)
    server = subprocess.Popen(
        [sys.executable, str(script), "--model-path", "me/tiny", "--port=31234"],
        env=throwaway.environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert server.stdout
        assert server.stdout.readline() == "up\n"

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
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


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
