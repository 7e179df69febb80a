"""What ``doctor -- COMMAND`` answers before boot is what the server's scheduler reports then."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from linux_mlx.environments import variables
from linux_mlx.patches import processes
from linux_mlx.server import running_server, server_command, server_variables
from tests.server.test_mlx_hybrid import prepared

pytestmark = [
    pytest.mark.skipif("sys.platform != 'linux'", reason="the shims are for Linux"),
    pytest.mark.whole_matrix,
]

COMMANDS = {
    "a Mac's": ("--disable-cuda-graph",),
    "without a cache": ("--trust-remote-code", "--disable-radix-cache", "--tp-size", "1"),
    "gated": ("--num-continuous-decode-steps", "2"),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_server_reports_what_was_answered(words: tuple[str, ...], tmp_path: Path) -> None:
    environment, model = prepared("0.5.23", tmp_path, "dense")
    settings = server_variables("all", tmp_path)
    given = [f"{name}={settings[name]}" for name in ("PYTHONPATH", "SGLANG_USE_MLX")]
    command: list[str | Path] = ["env", *given, *server_command(environment, model), *words]
    ours = environment.script("sglang-perf-patches")
    ask: list[str | Path] = [ours, "doctor", "--json", "--gpu", "none", "--"]
    asked = subprocess.run(
        ask + command, env=variables(), capture_output=True, text=True, timeout=900
    )
    assert asked.returncode == 0, asked.stderr
    answers = {each["id"]: each for each in json.loads(asked.stdout)["patches"]}
    log = tmp_path / "server.log"
    with running_server(
        environment, model, selection="all", log=log, arguments=words, runtime=tmp_path
    ) as running:
        (scheduler,) = (each for each in processes(running) if "scheduler" in each["role"])
    reported = {each["id"]: each for each in scheduler["patches"]}
    assert set(answers) == set(reported)
    for name, answer in answers.items():
        server = reported[name]
        if server["state"] == "off":  # a server judges nothing that is not chosen
            assert answer["state"] in {"off (opt-in)", "built-in", "absent"}, answer
            continue
        # A patch stays `pending` where the server never imports what it is for.
        states = {"live", "pending"} if answer["state"] == "live" else {answer["state"]}
        assert server["state"] in states, (answer, server)
        if server["state"] in {"gated", "not needed"} and "it needs " not in server["reason"]:
            assert server["reason"] == answer["reason"]
    there = {each["state"] for each in reported.values()}
    assert "not needed" in there
    assert ("gated" if "--num-continuous-decode-steps" in words else "live") in there
