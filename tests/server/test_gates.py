"""A real server with a feature that patches were not tested with: who says what, and STRICT."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from linux_mlx.environments import variables
from linux_mlx.patches import processes
from linux_mlx.patience import limit_s, wait_for
from linux_mlx.processes import members
from linux_mlx.server import Server, free_port, running_server, server_command, server_variables
from sglang_perf_patches.faults.known import FAULTS
from tests.server.test_mlx_hybrid import ON_LINUX, prepared

pytestmark = [ON_LINUX, pytest.mark.whole_matrix]

FLAG = "--enable-return-hidden-states"
CLAUSE = "hidden states, experts or indices are returned"
GATED = {
    *("mlx.pool-write", "mlx.first-buffer", "mlx.last-row", "mlx.kv-arena"),
    "mlx.relay-device",
}
CAUSE = f"gated because {CLAUSE}: "
KNOWN = "sglang-perf-patches: known fault of sglang "


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("gates")
    environment, model = prepared("0.5.23", folder, "dense")
    with running_server(
        environment, model, selection="all", log=folder / "log", arguments=(FLAG,)
    ) as running:
        yield running


def test_the_log_names_each_gated_patch_once_and_again_when_ready(server: Server) -> None:
    lines = logged(server, "; live on sglang", 1)
    ours = [line for line in lines if "sglang-perf-patches: " in line and KNOWN not in line]
    assert len(ours) == 2, ours
    for line in ours:
        assert {*line.partition(CAUSE)[2].split(", ")} == GATED
    assert "; live on sglang 0.5.23: " in ours[1]


def test_the_log_names_the_known_faults_of_a_server_that_is_ready(server: Server) -> None:
    """Next to those of MLX without its sampling: the one that the gated patch would prevent."""
    lines = logged(server, KNOWN, 3)
    named = {"mlx-sampling", "mlx-logprobs", "mlx-pool-memory"}
    assert {line.partition(KNOWN)[2] for line in lines if KNOWN in line} == {
        f"0.5.23: {fault.text()}" for fault in FAULTS if fault.name in named
    }


def test_status_and_doctor_call_it_a_problem_and_doctor_names_the_flag(server: Server) -> None:
    for verb in ("status", "doctor"):
        code, text = command(server, verb)
        assert code == 1
        assert text.startswith("to check: live") or verb == "status"
        names, found, _ = " ".join(text.split()).partition(f" are gated: {CLAUSE} ({FLAG}): ")
        assert found, text
        assert "mlx.pool-write" in names.rpartition(": ")[2]


def test_what_the_server_has_no_use_for_is_not_needed(server: Server) -> None:
    """A small dense model, on MLX, without speculation."""
    for process in processes(server):
        if process["role"] in {"launcher", "scheduler"}:
            state = {patch["id"]: patch["state"] for patch in process["patches"]}
            assert {name for name, word in state.items() if word == "gated"} == GATED
            none = {word for name, word in state.items() if name.startswith(("mla.", "mamba."))}
            assert none <= {"not needed", "off", "built-in", "absent"}
            assert state["mamba.slot-exhaustion"] == state["mla.page-table-bound"] == "not needed"
            assert state["swa.page-size-1"] == "not needed"


@pytest.mark.parametrize("release", ["0.5.11", "0.5.23"])
def test_strict_ends_the_server_with_one_line(release: str, tmp_path: Path) -> None:
    """0.5.11 publishes its arguments when it has started other processes."""
    environment, model = prepared(release, tmp_path, "dense")
    ports = ("--port", str(free_port()), "--nccl-port", str(free_port()))
    settings = server_variables("mlx.kv-arena", tmp_path) | {"SGLANG_PERF_PATCHES_STRICT": "1"}
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*server_command(environment, model), *ports, FLAG],
            env=settings,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            assert process.wait(limit_s()) == 1
            assert wait_for(lambda: not members(process.pid))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    ours = [line for line in log.read_text().splitlines() if "sglang-perf-patches: " in line]
    # Another process may see it too before the launcher ends all of them.
    assert {*ours} == {
        f"sglang-perf-patches: mlx.pool-write is gated: {CLAUSE} ({FLAG}): "
        "this patch was not tested with that"
    }


def logged(server: Server, text: str, times: int) -> list[str]:
    assert wait_for(lambda: server.log.read_text(errors="replace").count(text) >= times)
    return server.log.read_text(errors="replace").splitlines()


def command(server: Server, *words: str) -> tuple[int, str]:
    """The command beside the server, with its selection: exit code and output."""
    done: Any = subprocess.run(
        [server.environment.script("sglang-perf-patches"), *words],
        env=variables(SGLANG_PERF_PATCHES=server.selection, XDG_RUNTIME_DIR=server.runtime),
        text=True,
        stdout=subprocess.PIPE,
        check=False,
    )
    return done.returncode, done.stdout
