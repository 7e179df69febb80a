"""Every process of a real stock server says what is live in it, and to which server it belongs.

Where a release loads no plugins, or not in every process, ``run`` reaches what is left. Four
servers of three releases: about two minutes on two free cores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from linux_mlx.completions import complete, workload
from linux_mlx.environments import install_checkout, sglang_environment
from linux_mlx.patches import processes, report
from linux_mlx.processes import members
from linux_mlx.server import Server, arguments_of, running_server
from mlx_server_on_cpu import write_model

pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="the shims are for Linux")

_REQUESTS = workload(4)
_PATIENCE_S = 90
_MANY = ("--dp-size", "2", "--tokenizer-worker-num", "2")

Process = dict[str, Any]


@dataclass(frozen=True)
class Seen:
    """What `status` showed of a running server, and what there was to show.

    Attributes:
        status: the server's processes, by role.
        unreached: the titles of those that `status` does not show.
        text: what `status` printed for people.
        after: the server's processes in `status` once it was shut down.
        group: PID of the launcher.
    """

    status: dict[str, Process]
    unreached: list[str]
    text: str
    after: list[Process]
    group: int


@pytest.fixture(scope="module")
def two_servers(folder: Path) -> tuple[Seen, Seen]:
    """0.5.10.post1, which loads no plugins, under `run`, and 0.5.11 by itself: at the same time."""
    with server(folder, "0.5.10.post1", run=True) as old, server(folder, "0.5.11") as new:
        found = [_seen(old, expected=3), _seen(new, expected=2)]
    return Seen(*found[0], processes(old), old.group), Seen(*found[1], processes(new), new.group)


@pytest.fixture(scope="module", params=["by plugin", "under run"])
def many(request: pytest.FixtureRequest, folder: Path) -> tuple[str, Seen]:
    """The newest release with a data-parallel controller and two tokenizer workers."""
    run = request.param == "under run"
    with server(folder, "0.5.23", *_MANY, run=run) as running:
        found = _seen(running, expected=7 if run else 5)
    return request.param, Seen(*found, processes(running), running.group)


def test_a_release_without_plugins_is_reached_whole_under_run(
    two_servers: tuple[Seen, Seen],
) -> None:
    old, _ = two_servers
    assert set(old.status) == {"launcher", "scheduler", "detokenizer"}
    assert old.unreached == []
    assert {process["sglang"] for process in old.status.values()} == {"0.5.10.post1"}


def test_0_5_11_loads_plugins_in_launcher_and_scheduler(two_servers: tuple[Seen, Seen]) -> None:
    _, new = two_servers
    assert set(new.status) == {"launcher", "scheduler"}
    assert new.unreached == ["sglang::detokenizer"]
    assert {process["sglang"] for process in new.status.values()} == {"0.5.11"}


def test_the_newest_loads_plugins_everywhere_but_in_tokenizer_workers(
    many: tuple[str, Seen],
) -> None:
    way, seen = many
    always = {"launcher", "data_parallel_controller", "detokenizer"}
    always |= {"scheduler_DP0", "scheduler_DP1"}
    titles = [title for title in seen.unreached if title.startswith("sglang::tokenizer_worker:")]
    workers = {role for role in seen.status if role.startswith("tokenizer_worker:")}
    assert seen.status.keys() - workers == always
    assert titles == seen.unreached
    assert (len(workers), len(titles)) == ((2, 0) if way == "under run" else (0, 2))


def test_mlx_patches_are_live_and_have_run_in_every_scheduler_and_nowhere_else(
    two_servers: tuple[Seen, Seen], many: tuple[str, Seen]
) -> None:
    for seen in (*two_servers, many[1]):
        for role, process in seen.status.items():
            run = {patch["id"] for patch in process["patches"] if patch["ran"]}
            live = {patch["id"] for patch in process["patches"] if patch["state"] == "live"}
            assert run <= live
            assert bool(run) == role.startswith("scheduler"), role
            assert all(patch.startswith("mlx.") for patch in run)


def test_two_servers_at_once_are_told_apart(two_servers: tuple[Seen, Seen]) -> None:
    old, new = two_servers
    assert old.group != new.group
    for seen, other in ((old, new), (new, old)):
        assert seen.status["launcher"]["pid"] == seen.group
        assert {process["server"] for process in seen.status.values()} == {seen.group}
        pids = {process["pid"] for process in seen.status.values()}
        assert pids.isdisjoint(process["pid"] for process in other.status.values())
    # Both were asked while both ran, the old one first.
    for pid, count in ((old.group, 3), (new.group, 2)):
        assert f"server {pid}: {count} processes\n" in new.text


def test_all_processes_are_of_one_server(many: tuple[str, Seen]) -> None:
    _, seen = many
    assert {process["server"] for process in seen.status.values()} == {seen.group}
    assert seen.text.startswith(f"server {seen.group}: {len(seen.status)} processes\n")


def test_a_server_that_has_ended_is_not_shown(
    two_servers: tuple[Seen, Seen], many: tuple[str, Seen], folder: Path
) -> None:
    assert [seen.after for seen in (*two_servers, many[1])] == [[], [], []]
    assert list((folder / "sglang-perf-patches").iterdir()) == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, logs, and the records of all servers."""
    return tmp_path_factory.mktemp("servers")


@contextmanager
def server(folder: Path, release: str, *arguments: str, run: bool = False) -> Iterator[Server]:
    """A server that has answered; its records are where the others' are."""
    environment = sglang_environment(release)
    install_checkout(environment)
    # Stock sglang asks for the cores of each rank where there are more ranks than memory nodes. A
    # tokenizer worker that is silent for a while it starts anew, and on a busy machine each one is
    # while it imports.
    cores = sorted(os.sched_getaffinity(0)) * 2
    settings = {
        "SGLANG_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[1]}",
        "SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "300",
    }
    with running_server(
        environment,
        write_model(environment, folder / release),
        selection="all",
        log=folder / f"{release}{' under run' if run else ''}.log",
        launcher=(environment.script("sglang-perf-patches"), "run") if run else (),
        arguments=(*arguments_of(release), *arguments),
        settings=settings if arguments else {},
        runtime=folder,
    ) as running:
        assert len(complete(running.url, _REQUESTS)) == len(_REQUESTS)
        yield running


def _seen(running: Server, *, expected: int) -> tuple[dict[str, Process], list[str], str]:
    """What there is once as many processes as expected are shown, or after a while."""

    def is_settled() -> bool:
        shown = processes(running)
        roles = [process["role"] for process in shown]
        ran = [any(p["ran"] for p in process["patches"]) for process in shown]
        schedulers = [name.startswith("scheduler") for name in roles]
        # A process gives itself a title some time after its start.
        titles = _titles(running, without=[running.group])
        named = all(title.startswith("sglang::") for title in titles)
        return len(shown) == expected and ran == schedulers and named

    _wait_for(is_settled)
    shown = processes(running)
    titles = _titles(running, without=[process["pid"] for process in shown])
    return {process["role"]: process for process in shown}, titles, report(running, "status")


def _titles(running: Server, without: Sequence[int]) -> list[str]:
    """The first words of the commands of the server's processes but some."""
    found = []
    for pid in sorted(set(members(running.group)) - set(without)):
        with suppress(FileNotFoundError):  # it ended meanwhile
            command = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0 ").split("\0")
            if "multiprocessing.resource_tracker" not in " ".join(command):  # Python's own
                found.append(command[0])
    return found


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(1)
