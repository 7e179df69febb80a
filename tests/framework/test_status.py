"""Records of running processes, and what ``status`` tells of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from throwaway import Throwaway

from sglang_perf_patches.seen import records as record

SERVE = """
import sys
from throwaway_patches import *
import sglang_perf_patches as ours
use(STEP, declare("one.bad", install="breaks", targets=(f"{A}:Worker.step", f"{B}:Caller.call")))
import logging
logging.basicConfig(level=logging.INFO)
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


def status(throwaway: Throwaway, *words: str, **variables: str | None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", STATUS, *words],
        env=throwaway.environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def processes(throwaway: Throwaway, **variables: str | None) -> list[dict[str, object]]:
    _, out, _ = status(throwaway, "--json", **variables)
    found: list[dict[str, object]] = json.loads(out)["processes"]
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def states(process: dict[str, object]) -> dict[str, tuple[str, bool]]:
    patches = process["patches"]
    assert isinstance(patches, list)
    return {patch["id"]: (patch["state"], patch["ran"]) for patch in patches}


def test_status_tells_what_is_live_and_has_run(throwaway: Throwaway) -> None:
    one, two = start(throwaway), start(throwaway, SGLANG_PERF_PATCHES="all,-one.bad")
    try:
        found = {process["pid"]: process for process in processes(throwaway)}
        assert set(found) == {one.pid, two.pid}
        assert set(found[one.pid]) == {"pid", "server", "started", "role", "sglang", "patches"}
        assert set(found[one.pid]["patches"][0]) == {"id", "state", "reason", "ran"}  # type: ignore[index]
        assert found[one.pid]["sglang"] == "1.0"
        assert one.stdin
        assert one.stdout
        one.stdin.write("\n")
        one.stdin.flush()
        assert one.stdout.readline() == "102\n"
        wait_for(lambda: any(states(each)["one.step"][1] for each in processes(throwaway)))
        found = {process["pid"]: process for process in processes(throwaway)}
        assert states(found[one.pid]) == {"one.step": ("live", True), "one.bad": ("failed", False)}
        assert states(found[two.pid]) == {"one.step": ("live", False), "one.bad": ("off", False)}
        code, text, _ = status(throwaway)
        assert code == 0  # nothing was chosen by name
        assert "one.step" in text
        assert "has run" in text
    finally:
        for process in (one, two):
            process.kill()
            process.communicate()


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
            found: dict[int, set[object]] = {}
            for process in processes(throwaway):
                found.setdefault(process["server"], set()).add(process["pid"])  # type: ignore[call-overload]
            return found

        assert by_server() == expected
        assert all(len(members) == 3 for members in expected.values())
        _, text, _ = status(throwaway)
        lines = text.splitlines()
        first, second = sorted(expected)
        places = [lines.index(f"server {pid}: 3 processes") for pid in (first, second)]
        shown = [int(line.split()[0]) for line in lines if line[:1].isdigit()]
        assert places == sorted(places)
        assert set(shown[:3]) == expected[first]
        assert set(shown[3:]) == expected[second]

        # The workers of a launcher that was killed still belong together.
        servers[0].kill()
        servers[0].wait()
        expected[servers[0].pid] -= {servers[0].pid}
        assert by_server() == expected
        assert (
            f"server {servers[0].pid}: 2 processes, its launcher has ended" in status(throwaway)[1]
        )
    finally:
        for server in servers:
            os.killpg(server.pid, signal.SIGKILL)
            server.communicate()


def test_exit_code_tells_what_was_chosen_by_name_and_failed(throwaway: Throwaway) -> None:
    process = start(throwaway, SGLANG_PERF_PATCHES="one")
    try:
        wait_for(lambda: states(processes(throwaway)[0])["one.bad"][0] == "failed")
        code, text, _ = status(throwaway)
        assert code == 1
        assert "broken on purpose" in text
    finally:
        process.kill()
        process.communicate()


def test_a_record_goes_with_its_process(throwaway: Throwaway) -> None:
    process = start(throwaway)
    path = next((throwaway.runtime / "sglang-perf-patches").glob("*.json"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    process.communicate("", timeout=30)
    assert not path.exists()
    assert status(throwaway)[0] == 0


def test_a_killed_process_is_not_shown_and_cleaned_up(throwaway: Throwaway) -> None:
    process = start(throwaway)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    folder = throwaway.runtime / "sglang-perf-patches"
    assert len(list(folder.iterdir())) == 1
    assert processes(throwaway) == []
    assert list(folder.iterdir()) == []


def test_a_record_of_an_earlier_process_with_the_same_pid(throwaway: Throwaway) -> None:
    folder = throwaway.runtime / "sglang-perf-patches"
    folder.mkdir(mode=0o700)
    (folder / f"{os.getpid()}-1.json").write_text(json.dumps({"pid": os.getpid()}))
    assert processes(throwaway) == []
    assert list(folder.iterdir()) == []


def test_damaged_records_are_passed_over(throwaway: Throwaway) -> None:
    folder = throwaway.runtime / "sglang-perf-patches"
    folder.mkdir(mode=0o700)
    path = folder / f"{os.getpid()}-{record._start_token(os.getpid())}.json"
    whole = {"pid": os.getpid(), "server": f"{os.getpid()}-1", "started": 0.0, "role": "python"}
    whole |= {"sglang": "1.0", "selection": "all", "patches": []}
    damaged = [
        {**whole, "pid": os.getpid() + 1},
        {**whole, "server": "x"},
        {**whole, "server": 1.5},
    ]
    damaged += [{**whole, "patches": [0]}, {**whole, "patches": [{"id": "one.step"}]}]
    damaged += [{**whole, "started": "x"}, {k: v for k, v in whole.items() if k != "role"}]
    for text in ("{", "[]", '{"pid": "x"}', "\udcff", *map(json.dumps, damaged)):
        path.write_text(text, errors="surrogateescape")
        code, out, err = status(throwaway)
        assert (code, err) == (0, "")
        assert "no running sglang process" in out
    assert path.exists()
    path.write_text(json.dumps(whole))
    assert [each["pid"] for each in processes(throwaway)] == [os.getpid()]


def test_a_link_in_the_folder_is_not_followed(throwaway: Throwaway, tmp_path: Path) -> None:
    process = start(throwaway)
    try:
        path = next((throwaway.runtime / "sglang-perf-patches").glob("*.json"))
        assert len(processes(throwaway)) == 1
        elsewhere = tmp_path / "elsewhere.json"
        elsewhere.write_text(path.read_text())
        process.send_signal(signal.SIGSTOP)
        path.unlink()
        path.symlink_to(elsewhere)
        assert processes(throwaway) == []
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a file to another user")
def test_a_record_of_another_user_is_not_trusted(throwaway: Throwaway) -> None:
    process = start(throwaway)
    try:
        process.send_signal(signal.SIGSTOP)
        path = next((throwaway.runtime / "sglang-perf-patches").glob("*.json"))
        assert len(processes(throwaway)) == 1
        os.chown(path, 12345, 12345)
        assert processes(throwaway) == []
    finally:
        process.kill()
        process.communicate()


def test_a_half_written_record_of_a_killed_process_is_cleaned_up(throwaway: Throwaway) -> None:
    folder = throwaway.runtime / "sglang-perf-patches"
    folder.mkdir(mode=0o700)
    (folder / f"{os.getpid()}-1.part").write_text("{")
    (folder / "of somebody else").write_text("")
    mine = folder / f"{os.getpid()}-{record._start_token(os.getpid())}.part"
    mine.write_text("{")  # being written just now
    assert processes(throwaway) == []
    assert {path.name for path in folder.iterdir()} == {"of somebody else", mine.name}


def test_a_record_that_a_cleaner_of_temporary_files_took_comes_back(throwaway: Throwaway) -> None:
    process = start(throwaway)
    try:
        folder = throwaway.runtime / "sglang-perf-patches"
        shutil.rmtree(folder)
        wait_for(lambda: [found["pid"] for found in processes(throwaway)] == [process.pid])
        assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        process.kill()
        process.communicate()


def test_a_folder_that_others_can_write_is_neither_read_nor_used(throwaway: Throwaway) -> None:
    folder = throwaway.runtime / "sglang-perf-patches"
    folder.mkdir()
    folder.chmod(0o777)
    code, _, said = status(throwaway)
    assert (code, said.count("\n")) == (2, 1)
    assert "not a folder of this user alone" in said
    process = start(throwaway)
    try:
        assert list(folder.iterdir()) == []
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a folder to another user")
def test_a_folder_of_another_user_is_not_trusted(throwaway: Throwaway, tmp_path: Path) -> None:
    folder = tmp_path / f"sglang-perf-patches-{os.getuid()}"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    code, _, said = status(throwaway, XDG_RUNTIME_DIR=None, TMPDIR=str(tmp_path))
    assert (code, said.count("\n")) == (2, 1)


def test_without_a_runtime_folder_the_temporary_one_serves(
    throwaway: Throwaway, tmp_path: Path
) -> None:
    where = {"XDG_RUNTIME_DIR": None, "TMPDIR": str(tmp_path)}
    process = start(throwaway, **where)
    try:
        folder = tmp_path / f"sglang-perf-patches-{os.getuid()}"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [found["pid"] for found in processes(throwaway, **where)] == [process.pid]
    finally:
        process.kill()
        process.communicate()


def test_one_line_of_information_and_one_warning(throwaway: Throwaway, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as file:
        process = start(throwaway, stderr=file)
        wait_for(lambda: "live on" in log.read_text())
        time.sleep(3)  # for a line too many
        process.kill()
        process.communicate()
    ours = [line for line in log.read_text().splitlines() if "sglang-perf-patches" in line]
    assert len(ours) == 2, ours
    assert "one.bad is failed" in ours[0]
    assert "live on sglang 1.0: one.step" in ours[1]
