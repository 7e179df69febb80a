"""``bench server`` from its start to each of its ends; no end leaves a process behind."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from served import Bench, until

from linux_mlx.patience import limit_s, wait_for

pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="looks for processes in /proc")


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What it said apart from progress."""
    return [line for line in done.stderr.splitlines() if not re.match(r"\[ *\d+:\d\d\] ", line)]


def logs(done: subprocess.CompletedProcess[str]) -> Path:
    found = re.search("logs are in (.*)", done.stderr)
    assert found is not None
    return Path(found[1])


def boots(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The turn and the side of each, in order."""
    return ["".join(pair) for pair in re.findall(r"turn (\d) of \d, (\w+): boot", done.stderr)]


def test_turns_come_to_a_conclusion(bench: Bench) -> None:
    words = ("--turns", "3", "--json")
    done = bench.run(bench.command(*words, behaviour="family"), SGLANG_PERF_PATCHES="one")
    assert done.returncode == 0, done.stderr
    data: Any = json.loads(done.stdout)
    assert data["changes"]["TTFT"]["word"] == "less"
    assert data["changes"]["throughput"]["word"] == "more"
    assert data["changes"]["KV capacity"]["word"] == "same"
    assert data["changes"]["boot"]["stock"][0] > 0
    assert data["changes"]["host memory"]["stock"][0] > 1  # MB
    assert data["tokens"]["word"] == "equal"
    (live,) = data["live"]
    assert (live["patch"], live["live"], live["ran"]) == ("one.step", 3, 3)
    assert {len(change["patched"]) for change in data["changes"].values()} == {3}
    assert boots(done) == ["1patched", "1stock", "2stock", "2patched", "3patched", "3stock"]
    # Of each boot the server's log and the load's.
    assert len(list(logs(done).glob("*.log"))) == 12
    assert len(bench.pids.read_text().split()) == 12
    assert bench.left() == []


@pytest.mark.parametrize(
    ("adds", "word"),
    [("TOLD_MS=30", "more"), ("--told-ms 20", "same"), ("SGLANG_PERF_PATCHES=one.step", "less")],
)
def test_any_settings_are_compared_with_the_command(bench: Bench, adds: str, word: str) -> None:
    command = bench.command("--turns", "2", "--json", "--b", adds)
    done = bench.run(command, SGLANG_PERF_PATCHES="none")
    assert done.returncode == 0, done.stderr
    data: Any = json.loads(done.stdout)
    assert [side["name"] for side in data["sides"]] == ["a", "b"]
    assert bool(data["live"]) == (word == "less")
    assert data["changes"]["TTFT"]["word"] == word
    # Boots take the time that they take, and may differ too.
    said = {"more": "Worse with b than with a: TTFT", "less": "Better with b than with a: TTFT"}
    assert said.get(word, "") in data["conclusion"]
    assert boots(done) == ["1b", "1a", "2a", "2b"]
    assert bench.left() == []


@pytest.mark.parametrize(
    ("words", "code"),
    [(("--b", "TOLD_MS=30"), 0), (("--b", "SGLANG_PERF_PATCHES=one.step"), 1), ((), 1)],
)
def test_a_side_must_have_its_patches(bench: Bench, words: tuple[str, ...], code: int) -> None:
    """A side that names patches needs one live; another one may have none."""
    command = bench.without_package(bench.command("--turns", "2", *words))
    done = bench.run(command, SGLANG_PERF_PATCHES="all")
    assert done.returncode == code, done.stderr
    is_refused = "no process of the server has a record of patches" in done.stderr
    assert is_refused == bool(code)
    if is_refused:  # before the load
        assert "load" not in re.findall(r"turn 1 of 2, \w+: (\w+)", done.stderr)
    assert bench.left() == []


@pytest.mark.parametrize(
    ("turns", "behaviour", "code", "said"),
    [
        (1, "", 1, "^No conclusion: one turn does not show"),
        (2, "other-tokens", 1, "^The greedy tokens differ!"),
        (2, "unsteady", 0, "stock's own boots gave different tokens for each of 16 prompts"),
    ],
)
def test_what_is_not_shown(bench: Bench, turns: int, behaviour: str, code: int, said: str) -> None:
    done = bench.run(bench.command("--turns", str(turns), behaviour=behaviour))
    assert done.returncode == code, done.stderr
    assert re.search(said, done.stdout)
    assert bench.left() == []


@pytest.mark.parametrize(
    ("behaviour", "words", "said"),
    [
        ("crash-boot", (), "turn 1, patched: the server ended with 1: RuntimeError$"),
        ("hang-boot", ("--timeout", "3"), "the boot was not finished after 3 s"),
        ("crash-load", (), "the server ended with 3: "),
        ("", ("--extra-request-body", "crash"), "bench_serving ended with 1: ValueError$"),
        ("", ("--extra-request-body", "errors"), r"3 of 8 requests failed: \.\.\.$"),
        ("", ("--extra-request-body", "hang", "--timeout", "12"), "load was not finished"),
    ],
)
def test_a_failure_is_one_line_and_leaves_no_process(
    bench: Bench, behaviour: str, words: tuple[str, ...], said: str
) -> None:
    command = bench.command(*words, behaviour=f"family,{behaviour}" if behaviour else "family")
    done = bench.run(command)
    assert done.returncode == 1
    (line,) = lines(done)
    assert re.search(said, line), line
    assert done.stdout == ""
    assert bench.left() == []
    assert "1-patched.log" in {log.name for log in logs(done).iterdir()}


def test_a_side_that_fails_later_keeps_the_turns_before(bench: Bench) -> None:
    # Another process takes the port between two boots; any other failure would do as well.
    command = bench.command("--turns", "3")
    with bench.start(command) as process, socket.socket() as other:
        until(process, "turn 3 of 3, patched: ending")
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        while process.poll() is None:
            try:
                other.bind(("127.0.0.1", bench.port))
                other.listen()
                break
            except OSError:
                time.sleep(0.001)
        out, _ = process.communicate(timeout=limit_s())
    assert process.returncode == 1
    said = " ".join(out.split())
    assert f"It stopped early: turn 3, stock: port {bench.port} of 127.0.0.1 is in use" in said
    assert "2 turns of two boots each" in said
    assert bench.left() == []


def test_a_port_in_use_is_said_before_anything_is_started(bench: Bench) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", bench.port))
        other.listen()
        done = bench.run(bench.command())
    assert done.returncode == 2
    assert lines(done) == [
        f"sglang-perf-patches: port {bench.port} of 127.0.0.1 is in use: stop what listens there, "
        "or name another --port"
    ]
    assert not bench.pids.exists()


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        (("--num-prompt-s", "3"), {}, "--num-prompt-s: neither bench server nor"),
        (("--base-url", "x"), {}, "--base-url: bench server sets this option"),
        (("--num-prompts", "8"), {"SGLANG_PERF_PATCHES": "none"}, "there is nothing to compare"),
        (("mlx",), {}, "choose patches with SGLANG_PERF_PATCHES"),
        (("--b", "SGLANG_PERF_PATCHES=frob"), {}, "unknown"),
        (("--turns", "0"), {}, "--turns must be 1 or more"),
    ],
)
def test_what_is_wrong_is_said_before_a_boot(
    bench: Bench, words: tuple[str, ...], variables: dict[str, str | None], said: str
) -> None:
    done = bench.run(bench.command(*words), **variables)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not bench.pids.exists()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGQUIT, marks=pytest.mark.whole_matrix)]
)
@pytest.mark.parametrize(
    ("behaviour", "words", "when"),
    [
        ("family,hang-boot", (), "patched: starting"),
        ("family,slow-tokens", (), "greedy tokens"),
        ("family,slow-together", (), "greedy tokens"),
        ("family", ("--extra-request-body", "hang"), "patched: load"),
        ("family,deaf", (), "patched: ending"),
    ],
)
def test_a_signal_in_each_phase_leaves_no_process(
    bench: Bench, behaviour: str, words: tuple[str, ...], when: str, number: int
) -> None:
    command = bench.command(*words, behaviour=behaviour)
    with bench.start(command) as process:
        until(process, when)
        bench.wait_for_family()
        time.sleep(1)
        began = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate(timeout=limit_s())
    assert process.returncode == 128 + number
    assert err.splitlines()[-1] == "sglang-perf-patches: interrupted; nothing is left running"
    assert "Traceback" not in err
    assert bench.left() == []
    if "deaf" in behaviour:
        assert time.monotonic() - began < 18  # a signal ends the asking, which takes 20 s


def test_a_kill_of_the_bench_leaves_no_process(bench: Bench) -> None:
    with bench.start(bench.command(behaviour="family,hang-boot")) as process:
        until(process, "patched: starting")
        bench.wait_for_family()
        assert len(bench.left()) == 2
        process.kill()
    assert wait_for(lambda: bench.left() == [])


def test_a_second_signal_does_not_stop_the_ending(bench: Bench) -> None:
    command = bench.command(behaviour="family,deaf,hang-boot")
    with bench.start(command) as process:
        until(process, "patched: starting")
        bench.wait_for_family()
        for _ in range(5):
            process.send_signal(signal.SIGINT)
            time.sleep(0.02)
        process.communicate(timeout=limit_s())
    assert process.returncode == 130
    assert bench.left() == []


def refused(bench: Bench, *before: str, words: tuple[str, ...] = (), **variables: str) -> str:
    """The only line of a run that starts no server."""
    text = (bench.throwaway.site / "program.py").read_text(encoding="utf-8")
    bench.throwaway.put("sglang/launch_server.py", text)
    ours = [sys.executable, "-m", "sglang_perf_patches", "bench", "server", *words, "--"]
    command = [*before, sys.executable, "-m", "sglang.launch_server", "--pids", str(bench.pids)]
    done = bench.run([*ours, *command], **variables)
    assert done.returncode == 2, done.stderr
    assert not bench.pids.exists()
    return done.stderr.splitlines()[-1]


def test_a_filter_that_leaves_this_plugin_out_is_not_overridden(bench: Bench) -> None:
    bench.throwaway.lend_plugin_loader("0.5.23")
    said = "patched: SGLANG_PLUGINS does not name perf_patches"
    assert said in refused(bench, SGLANG_PLUGINS="other")
    assert said in refused(bench, "env", "SGLANG_PLUGINS=other, another")
    side = ("--b", "SGLANG_PERF_PATCHES=one SGLANG_PLUGINS=other")
    assert "b: SGLANG_PLUGINS does not name" in refused(bench, words=side)
