"""The records of running processes: where they are, which are believed, and when they go."""

import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
from running import STATUS_COMMAND, processes, serving, status, written
from throwaway import BEGINNING, Throwaway

from linux_mlx.patience import limit_s, wait_for
from sglang_perf_patches.model import private
from sglang_perf_patches.telemetry import procfs, records


@pytest.fixture
def folder(throwaway: Throwaway) -> Path:
    folder = throwaway.runtime / "sglang-perf-patches"
    folder.mkdir(mode=0o700)
    return folder


def test_a_record_goes_with_its_process(throwaway: Throwaway) -> None:
    with serving(throwaway) as process:
        (path,) = (throwaway.runtime / "sglang-perf-patches").glob("*.json")
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        process.communicate("", timeout=limit_s())
    assert not path.exists()
    assert status(throwaway)[0] == 0


def test_damaged_records_are_passed_over(throwaway: Throwaway, folder: Path) -> None:
    path = folder / f"{records.name_of(os.getpid())}.json"
    whole = {"pid": os.getpid(), "server": f"x-{os.getpid()}-1", "started": 0.0, "role": "python"}
    whole |= {"sglang": "1.0", "selection": "all", "image": "", "prefix": "", "patches": []}
    damaged = [
        *({**whole, "pid": os.getpid() + 1}, {**whole, "server": "x"}, {**whole, "server": 1.5}),
        *({**whole, "patches": [0]}, {**whole, "patches": [{"id": "one.step"}]}),
        {name: value for name, value in whole.items() if name != "role"},
        *({**whole, "started": odd} for odd in (float("inf"), float("nan"), 1e30, -1, "x")),
    ]
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


@pytest.mark.parametrize("kind", ["a link", "another user's"])
def test_only_a_file_of_this_user_is_trusted(
    throwaway: Throwaway, folder: Path, tmp_path: Path, kind: str
) -> None:
    if kind != "a link" and os.getuid():
        pytest.skip("needs root to give a file to another user")
    with serving(throwaway) as process:
        process.send_signal(signal.SIGSTOP)
        (path,) = folder.glob("*.json")
        assert len(processes(throwaway)) == 1
        if kind == "a link":
            path.symlink_to(path.rename(tmp_path / "elsewhere.json"))
        else:
            os.chown(path, 12345, 12345)
        assert processes(throwaway) == []


def test_what_is_left_of_others_is_cleaned_up(throwaway: Throwaway, folder: Path) -> None:
    earlier = f"{procfs.namespace()}-{os.getpid()}-1"  # a process that had this PID
    written_now, foreign = f"{records.name_of(os.getpid())}.part", "of somebody else"
    # Of another PID namespace, and of a version that did not say its namespace.
    hidden = {"0badcafe-1-1.json", "1-1.json"}
    for name in (f"{earlier}.json", f"{earlier}.part", written_now, foreign, *hidden):
        (folder / name).write_text(json.dumps({"pid": os.getpid()}))
    assert processes(throwaway) == []
    assert {path.name for path in folder.iterdir()} == {written_now, foreign, *hidden}
    for name in hidden:
        os.utime(folder / name, (time.time() - 90_000,) * 2)
    assert processes(throwaway) == []
    assert {path.name for path in folder.iterdir()} == {written_now, foreign}


def test_a_record_that_a_cleaner_of_temporary_files_took_comes_back(throwaway: Throwaway) -> None:
    with serving(throwaway) as process:
        folder = throwaway.runtime / "sglang-perf-patches"
        folder.rename(throwaway.runtime / "taken")  # at once: the process may be writing
        assert wait_for(lambda: [each["pid"] for each in processes(throwaway)] == [process.pid])
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["open to all", "readable", "a link", "another user's"])
def test_a_folder_that_is_not_private(throwaway: Throwaway, tmp_path: Path, kind: str) -> None:
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


FORKS = """
import subprocess
warnings.simplefilter("ignore")
look_nowhere_else()
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
    throwaway.play(f"""{FORKS}
child = subprocess.Popen(["sleep", "60"], preexec_fn=lambda: None)
by_hand = os.fork()
if by_hand == 0:
    os.execvp("sleep", ["sleep", "60"])
time.sleep(2.5)                                     # for a recorder to start by itself
try:
    assert files() == shown() == [os.getpid()], files()
finally:
    child.kill(), os.kill(by_hand, 9)
""")


@pytest.mark.parametrize("becomes", [["sleep", "60"], [sys.executable, "-c", "input()"]])
def test_a_record_is_not_of_the_next_program(throwaway: Throwaway, becomes: list[str]) -> None:
    throwaway.play(f"""{FORKS}
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
    wait_until(lambda: shown() == [os.getpid()])
    assert shown() == files() == [os.getpid()], files()
finally:
    os.kill(child, 9)
""")


def test_a_forked_worker_has_a_record_while_it_works(throwaway: Throwaway) -> None:
    throwaway.play(f"""{FORKS}
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
def found():
    return [data for data in records.read_all() if data["pid"] == child.pid]
wait_until(lambda: found() and found()[0]["patches"][0]["ran"])
assert found()[0]["server"] == os.getpid()
end.set()
child.join()
assert files() == [os.getpid()], files()            # nobody has read in between
""")


def test_a_forked_child_is_patched_once_and_leaves_nothing(throwaway: Throwaway) -> None:
    throwaway.play(f"""{FORKS}
for is_silent in (True, False, True):
    child = os.fork()
    if not child:
        ours.activate("all")
        assert os.getpid() in shown() and a.Worker().step(1) == 102
        if not is_silent:
            ours.deactivate()
            assert a.Worker().step(1) == 2
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
assert shown() == [os.getpid()] and a.Worker().step(1) == 102
wait_until(lambda: files() == [os.getpid()])        # our own recorder tidies up
""")


def test_a_server_without_a_runtime_folder_is_seen(throwaway: Throwaway) -> None:
    with serving(throwaway, XDG_RUNTIME_DIR=None) as process:
        folder = throwaway.temporary / f"sglang-perf-patches-{os.getuid()}"
        assert len(written(folder)) == 1
        assert folder.stat().st_mode & 0o777 == 0o700
        for where in ({}, {"XDG_RUNTIME_DIR": None}):
            assert [entry["pid"] for entry in processes(throwaway, **where)] == [process.pid]
    assert processes(throwaway) == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("base", ["_RUN", "_TEMPORARY"])
def test_a_server_is_seen_without_a_folder(throwaway: Throwaway, tmp_path: Path, base: str) -> None:
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
    folder = throwaway.temporary / f"sglang-perf-patches-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with serving(throwaway) as process:
        assert [entry["pid"] for entry in processes(throwaway)] == [process.pid]


def test_a_sweep_of_many_records_takes_little_at_a_time(tmp_path: Path) -> None:
    long_ago = time.time() - 90_000
    for number in range(5000):
        path = tmp_path / f"0badcafe-{number}-1.json"
        path.touch()
        if number % 2:
            os.utime(path, (long_ago,) * 2)
    random.seed(1)
    for _ in range(300):
        before = len(os.listdir(tmp_path))
        records.sweep(tmp_path)
        assert before - len(os.listdir(tmp_path)) <= 200
    assert len(os.listdir(tmp_path)) == 2500


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make a PID namespace")
def test_a_reader_in_another_namespace_removes_nothing(throwaway: Throwaway, folder: Path) -> None:
    with serving(throwaway) as process:
        (before,) = written(folder)
        unshare = ("unshare", "--pid", "--fork", "--mount-proc")
        done = throwaway.execute(*unshare, *STATUS_COMMAND, "--json")
        if "unshare:" in done.stderr:
            pytest.skip(done.stderr)
        assert json.loads(done.stdout) == {"processes": [], "servers": []}
        assert written(folder) == [before]
        assert [entry["pid"] for entry in processes(throwaway)] == [process.pid]


def test_sglang_serve_is_a_launcher(throwaway: Throwaway) -> None:
    tells = "print(records.read_all()[0]['role'])\n"
    script = throwaway.put("bin/sglang", BEGINNING + FORKS + tells)
    for words, role in (("serve", "launcher"), ("bench", "sglang")):
        done = throwaway.execute(sys.executable, script, words, "--model-path", "x")
        assert done.stdout == f"{role}\n", done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder away")
def test_another_users_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after ``sudo``, which may keep the environment."""
    runtime, temporary = tmp_path / "runtime", tmp_path / "temporary"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert records.folder_to_write() == runtime / "sglang-perf-patches"
    os.chown(runtime, 12345, 12345)
    assert records.folder_to_write() == temporary / f"sglang-perf-patches-{os.getuid()}"
    assert next(records.folders_to_read()) == records.folder_to_write()


def test_a_user_without_a_home_has_no_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lacking)
    with pytest.raises(OSError, match="home directory"):
        private.cache()


def test_a_relative_cache_folder_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert private.cache() == Path.home() / ".cache" / "sglang-perf-patches"
