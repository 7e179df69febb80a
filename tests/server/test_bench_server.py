"""``bench server`` with the real stock server over MLX on this CPU.

There are six boots in the turns, and one for each phase that a Ctrl-C falls into: about eight
minutes on two free cores. No test asserts times, because other tests running beside it change them.
"""

import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from linux_mlx.environments import (
    Environment,
    install_bench_client,
    install_checkout,
    sglang_environment,
)
from linux_mlx.patience import limit_s
from linux_mlx.server import free_port, server_command, server_variables, write_model
from tests.server.test_mlx_hybrid import ON_LINUX

pytestmark = ON_LINUX
_LOAD = (
    *("--num-prompts", "16", "--max-concurrency", "8"),
    *("--random-input-len", "48", "--random-output-len", "64"),
)


@pytest.fixture(scope="module")
def environment() -> Environment:
    newest = sglang_environment("0.5.23")
    install_checkout(newest)
    install_bench_client(newest)
    return newest


@pytest.fixture(scope="module")
def model(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(environment, tmp_path_factory.mktemp("bench"))


def start(
    environment: Environment, model: Path, folder: Path, *words: str
) -> subprocess.Popen[str]:
    """``bench server`` in a session of its own, as a shell would start it."""
    command = [environment.script("sglang-perf-patches"), "bench", "server", *words, *_LOAD]
    server = server_command(environment, model)
    return subprocess.Popen(
        [str(word) for word in (*command, "--", *server, "--port", free_port())],
        env=server_variables("mlx", folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def using(folder: Path) -> list[int]:
    """The processes that were told of a folder or hold a file in it: all that `start` started."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            opened = {os.readlink(link) for link in (process / "fd").iterdir()}
            if os.fsencode(folder) in told or any(str(folder) in name for name in opened):
                pids.append(int(process.name))
    return pids


@pytest.mark.whole_matrix  # six boots
def test_three_turns_tell_the_gain(environment: Environment, model: Path, tmp_path: Path) -> None:
    with start(environment, model, tmp_path, "--json") as process:
        out, err = process.communicate(timeout=limit_s())
    assert process.returncode == 0, err[-3000:]
    data: Any = json.loads(out)
    assert data["turns"] == 3
    assert data["tokens"]["word"] == "equal"
    assert data["tokens"]["sentence"] == "equal for 16 prompts in 6 boots"
    ran = {(of["patch"], of["role"]): (of["live"], of["ran"]) for of in data["live"]}
    assert ran["mlx.kv-arena", "scheduler"] == (3, 3)
    for figure in ("TTFT", "TPOT", "throughput", "host memory", "boot"):
        change = data["changes"][figure]
        assert len(change["stock"]) == len(change["patched"]) == 3
        assert change["ratio"] > 0
        assert change["word"] in ("less", "more", "within")
    assert using(tmp_path) == []


@pytest.mark.whole_matrix  # four boots
def test_two_settings_of_a_flag(environment: Environment, model: Path, tmp_path: Path) -> None:
    """Half of the KV cache: the server's own figure, which no machine's load changes."""
    words = ("--turns", "2", "--json", "--b", "--max-total-tokens 8192")
    with start(environment, model, tmp_path, *words) as process:
        out, err = process.communicate(timeout=limit_s())
    data: Any = json.loads(out)
    assert [side["adds"] for side in data["sides"]] == ["", "--max-total-tokens 8192"], err[-3000:]
    capacity = data["changes"]["KV capacity"]
    assert (capacity["stock"], capacity["patched"]) == ([16384, 16384], [8192, 8192])
    assert capacity["word"] == "less"
    assert re.search("Worse with b than with a: .*KV capacity", data["conclusion"])
    assert {of["patch"] for of in data["live"]} == {of["patch"] for of in data["live_in_first"]}
    assert "mlx.kv-arena" in {of["patch"] for of in data["live"]}
    assert data["tokens"]["word"] == "equal"
    assert process.returncode == 0
    assert using(tmp_path) == []


@pytest.mark.parametrize(
    "phase",
    [
        "checking",
        pytest.param("patched: starting", marks=pytest.mark.whole_matrix),
        pytest.param("greedy tokens", marks=pytest.mark.whole_matrix),
        pytest.param("patched: load", marks=pytest.mark.whole_matrix),
        pytest.param("patched: ending", marks=pytest.mark.whole_matrix),
    ],
)
def test_ctrl_c_leaves_nothing(
    environment: Environment, model: Path, tmp_path: Path, phase: str
) -> None:
    with start(environment, model, tmp_path) as process:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if phase in line:
                break
        assert phase in lines[-1], lines
        # Well into the phase; a server that starts has started others by then.
        time.sleep(0.5 if "ending" in phase else 8 if "starting" in phase else 2)
        assert using(tmp_path) != []
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=limit_s())
    assert process.returncode == 130
    assert err.splitlines()[-1] == "sglang-perf-patches: interrupted; nothing is left running"
    assert "Traceback" not in err
    assert using(tmp_path) == []
