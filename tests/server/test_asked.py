"""What ``doctor -- COMMAND`` answers before boot is what a server's scheduler reports then."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from linux_mlx.completions import post
from linux_mlx.environments import Environment, variables
from linux_mlx.patches import live_and_run, processes
from linux_mlx.patience import limit_s
from linux_mlx.processes import Failure
from linux_mlx.server import running_server, server_command, server_variables
from tests.server.test_mlx_hybrid import ON_LINUX, QUANTISED, Asked, body, prepared

pytestmark = [ON_LINUX, pytest.mark.whole_matrix]

NO_CACHE = "--disable-radix-cache"
GROUPS = "all,mlx.length-groups"
SETUPS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "dense": ("dense", "all", ()),
    "dense, no cache": ("dense", "all", (NO_CACHE, "--trust-remote-code", "--tp-size", "1")),
    "dense, no overlap": ("dense", "all", ("--disable-overlap-schedule", "--disable-cuda-graph")),
    "dense, sampling": ("dense", "all", ("--mlx-enable-sampling",)),
    "dense, gated": ("dense", "all", ("--num-continuous-decode-steps", "2")),
    "dense, opt-in": ("dense", GROUPS, ()),
    "dense, off": ("dense", "none", ()),
    "hybrid": ("hybrid", "all", ()),
    "hybrid, no cache": ("hybrid", "all", (NO_CACHE,)),
    "hybrid, quantised": ("hybrid", "all", QUANTISED),
    "windows": ("windows", "all", ()),
}
"""Name → kind of model, selection of patches, further arguments."""


@pytest.mark.parametrize("name", SETUPS)
def test_a_server_reports_what_was_answered(name: str, tmp_path: Path) -> None:
    kind, selection, words = SETUPS[name]
    environment, model = prepared("0.5.23", tmp_path, kind)
    patches = asked(environment, model, selection, tmp_path, words)["patches"]
    answers = {each["id"]: each for each in patches}
    with running_server(
        environment,
        model,
        selection=selection,
        log=tmp_path / "server.log",
        arguments=words,
        runtime=tmp_path,
    ) as running:
        post(running.url, "/generate", body(Asked((5, 6, 7), 3)))
        ran = [] if selection == "none" else live_and_run(running, patience_s=15)
        reported = {
            patch["id"]: patch
            for process in processes(running)
            if "scheduler" in process["role"]
            for patch in process["patches"]
        }
    if selection == "none":
        assert not reported
        assert "live" not in {each["state"] for each in patches}
        return
    assert answers.keys() == reported.keys()
    states = {"off": {"off (opt-in)", "built-in", "absent"}, "pending": {"live"}}
    unlike = {
        patch: (answers[patch], there)
        for patch, there in reported.items()
        if answers[patch]["state"] not in states.get(there["state"], {there["state"]})
        or (
            there["state"] in {"gated", "not needed"}
            and "it needs " not in there["reason"]
            and there["reason"] != answers[patch]["reason"]
        )
    }
    assert not unlike
    assert {answers[patch]["state"] for patch in ran} <= {"live"}
    assert ran or "gated" in {there["state"] for there in reported.values()}


def test_a_server_that_ends_was_warned_of(tmp_path: Path) -> None:
    """Stock's pool on MLX has no pages, of which its scheduler asks for some."""
    environment, model = prepared("0.5.23", tmp_path, "dense")
    pages = ("--page-size", "16")
    (fault,) = (
        each
        for each in asked(environment, model, "none", tmp_path, pages)["faults"]
        if each["name"] == "mlx-pages"
    )
    (quoted,) = fault["symptom"].split("`")[1::2]
    with (
        pytest.raises(Failure, match=quoted),
        running_server(
            environment, model, selection="none", log=tmp_path / "server.log", arguments=pages
        ),
    ):
        pass


def asked(
    environment: Environment, model: Path, selection: str, folder: Path, words: Sequence[str]
) -> Any:
    settings = server_variables(selection, folder)
    given = [
        f"{each}={settings[each]}"
        for each in ("PYTHONPATH", "SGLANG_USE_MLX", "SGLANG_PERF_PATCHES")
    ]
    command = ["env", *given, *map(str, server_command(environment, model)), *words]
    ours = environment.script("sglang-perf-patches")
    done = subprocess.run(
        [ours, "doctor", "--json", "--gpu", "none", "--", *command],
        env=variables(),
        capture_output=True,
        text=True,
        timeout=limit_s(),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
