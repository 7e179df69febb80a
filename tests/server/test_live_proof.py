"""Each process of a real stock server says what is live in it and to which server it belongs.

Where a release loads no plugins, or not in every process, ``run`` reaches the rest.
"""

import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from linux_mlx.completions import complete, workload
from linux_mlx.environments import Environment
from linux_mlx.patches import processes, report
from linux_mlx.patience import limit_s, wait_for
from linux_mlx.processes import members
from linux_mlx.server import Server, arguments_of, running_server
from tests.server.test_mlx_hybrid import ON_LINUX, prepared

pytestmark = [ON_LINUX, pytest.mark.whole_matrix]

_REQUESTS = workload(4)
_MANY = ("--dp-size", "2", "--tokenizer-worker-num", "2")

Process = dict[str, Any]


@dataclass(frozen=True)
class Seen:
    """What `status` showed of a running server, and what there was to show."""

    status: dict[str, Process]  # the server's processes, by role
    unreached: list[str]  # the titles of those that `status` does not show
    text: str  # what `status` printed for people
    after: list[Process]  # in `status` once it was shut down
    group: int  # PID of the launcher
    log: list[str]  # our lines of it
    metrics: list[str] = field(default_factory=list)  # ours of ``/metrics``
    replies: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def two_servers(folder: Path) -> tuple[Seen, Seen]:
    """0.5.10.post1, which loads no plugins, under `run`, and 0.5.11 by itself, at the same time."""
    with (
        server(folder, "0.5.10.post1", run=True) as (old, _),
        server(folder, "0.5.11", "--enable-metrics") as (new, _),
    ):
        # No patch applies to MLX on 0.5.10.
        servers = [_seen(old, expected=3, runs=False), _seen(new, expected=2)]
        metrics = _metrics(new)
    return (
        Seen(*servers[0], processes(old), old.group, _log(old)),
        Seen(*servers[1], processes(new), new.group, _log(new), metrics),
    )


@pytest.fixture(scope="module", params=["by plugin", "under run"])
def many(request: pytest.FixtureRequest, folder: Path) -> tuple[str, Seen]:
    """The newest release with a data-parallel controller and two tokenizer workers."""
    run = request.param == "under run"
    with server(folder, "0.5.23", *_MANY, "--enable-metrics", run=run) as (running, replies):
        records = _seen(running, expected=7 if run else 5)
        metrics = _metrics(running)
    after, log = processes(running), _log(running)
    return request.param, Seen(*records, after, running.group, log, metrics, replies)


def test_older_releases_are_reached_as_far_as_they_can_be(two_servers: tuple[Seen, Seen]) -> None:
    """0.5.10.post1 loads none, so `run` reaches all; 0.5.11 loads none in the detokenizer."""
    old, new = two_servers
    assert set(old.status) == {"launcher", "scheduler", "detokenizer"}
    assert old.unreached == []
    assert {process["sglang"] for process in old.status.values()} == {"0.5.10.post1"}
    assert set(new.status) == {"launcher", "scheduler"}
    assert new.unreached == ["sglang::detokenizer"]
    assert {process["sglang"] for process in new.status.values()} == {"0.5.11"}


def test_the_newest_loads_plugins_except_in_tokenizer_workers(many: tuple[str, Seen]) -> None:
    way, seen = many
    always = {"launcher", "data_parallel_controller", "detokenizer"}
    always |= {"scheduler_DP0", "scheduler_DP1"}
    titles = [title for title in seen.unreached if title.startswith("sglang::tokenizer_worker:")]
    workers = {role for role in seen.status if role.startswith("tokenizer_worker:")}
    assert seen.status.keys() - workers == always
    assert titles == seen.unreached
    assert (len(workers), len(titles)) == ((2, 0) if way == "under run" else (0, 2))


def test_only_schedulers_ran_them(two_servers: tuple[Seen, Seen], many: tuple[str, Seen]) -> None:
    for seen in (two_servers[1], many[1]):
        for role, process in seen.status.items():
            run = {patch["id"] for patch in process["patches"] if patch["ran"]}
            live = {patch["id"] for patch in process["patches"] if patch["state"] == "live"}
            assert run <= live
            assert bool(run) == role.startswith("scheduler"), role
            assert all(patch.startswith("mlx.") for patch in run)


def test_data_parallel_schedulers_reply_as_stocks_do(many: tuple[str, Seen], folder: Path) -> None:
    with server(folder, "0.5.23", *_MANY, "--enable-metrics", selection="none") as (_, replies):
        assert many[1].replies == replies


def test_two_servers_at_once_are_told_apart(two_servers: tuple[Seen, Seen]) -> None:
    old, new = two_servers
    assert old.group != new.group
    for seen, other in ((old, new), (new, old)):
        assert seen.status["launcher"]["pid"] == seen.group
        assert {process["server"] for process in seen.status.values()} == {seen.group}
        pids = {process["pid"] for process in seen.status.values()}
        assert pids.isdisjoint(process["pid"] for process in other.status.values())
    # Both were asked while both ran, the older one first.
    for pid, count in ((old.group, 3), (new.group, 2)):
        head = rf"^server {pid}\b.*: live .*\({count} processes\)\n  sglang "
        assert re.search(head, new.text, re.M)


def test_all_processes_are_of_one_server(many: tuple[str, Seen]) -> None:
    _, seen = many
    assert {process["server"] for process in seen.status.values()} == {seen.group}
    head = rf"^server {seen.group}\b.*: live .*\({len(seen.status)} processes\)$"
    assert re.search(head, seen.text, re.M)


def test_a_server_logs_one_line_when_it_is_ready(two_servers: tuple[Seen, Seen]) -> None:
    for seen in two_servers:
        (line,) = [line for line in seen.log if "sglang-perf-patches: gated " not in line]
        match = re.search(
            r"server (\d+) with (\d) more: live \d+, pending \d+, refused 0(, gated \d+)?; live",
            line,
        )
        assert match, line
        assert (int(match[1]), int(match[2])) == (seen.group, len(seen.status) - 1)
        states = [
            (patch["state"], patch["id"])
            for process in seen.status.values()
            for patch in process["patches"]
        ]
        # A detokenizer of 0.5.10 publishes no arguments, so only the others know what they need.
        unneeded = {patch for state, patch in states if state == "not needed"}
        live = {patch for state, patch in states if state == "live"} - unneeded
        names = line.partition("; live on sglang ")[2].partition(": ")[2].partition("; gated ")[0]
        assert set(names.strip().split(", ")) == (live or {"none"})
        assert {*re.findall("gated (?:by|because) [^:;]*: [^;]*", line)} == {
            gates.partition("sglang-perf-patches: ")[2] for gates in seen.log if gates != line
        }


def test_many_tokenizer_workers_log_one_line_at_most(many: tuple[str, Seen]) -> None:
    lines = [line for line in many[1].log if "sglang-perf-patches: gated " not in line]
    assert len(lines) <= 1  # the launcher gets no word when they are ready


def test_metrics_of_all_schedulers(two_servers: tuple[Seen, Seen], many: tuple[str, Seen]) -> None:
    for seen in (two_servers[1], many[1]):
        info = [line for line in seen.metrics if line.startswith("sglang_perf_patches_info{")]
        assert len(info) == 1, seen.metrics
        assert 'selection="all"' in info[0]
        for name in ("live", "ran"):
            names = {
                (int(match["pid"]), match["patch"]): float(match["value"])
                for line in seen.metrics
                if (match := re.match(_SERIES.format(name), line))
            }
            expected = {
                (process["pid"], patch["id"]): float(
                    patch["ran"] if name == "ran" else patch["state"] == "live"
                )
                for role, process in seen.status.items()
                for patch in process["patches"]
                if patch["state"] != "off" and role.startswith("scheduler")
            }
            assert expected.items() <= names.items()
            assert any(expected.values())


def test_servers_that_have_ended_are_not_shown(
    two_servers: tuple[Seen, Seen], many: tuple[str, Seen], folder: Path
) -> None:
    assert [seen.after for seen in (*two_servers, many[1])] == [[], [], []]
    assert list((folder / "sglang-perf-patches").iterdir()) == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@contextmanager
def server(
    folder: Path, release: str, *arguments: str, run: bool = False, selection: str = "all"
) -> Iterator[tuple[Server, list[str]]]:
    """A server and what it has answered; its records are where the others' are."""
    environment, model = prepared(release, folder / release, "dense")
    if "--enable-metrics" in arguments:
        _install_exporter(environment, folder / "exporter")
    # Stock sglang asks for the cores of each rank where there are more ranks than memory nodes. It
    # restarts a tokenizer worker that is silent for a while, and on a busy machine each one is
    # silent while it imports.
    cores = sorted(os.sched_getaffinity(0)) * 2
    settings = {
        "SGLANG_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[1]}",
        "SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "300",
    }
    with running_server(
        environment,
        model,
        selection=selection,
        log=folder / f"{release} {selection}{' under run' if run else ''}.log",
        launcher=(environment.script("sglang-perf-patches"), "run") if run else (),
        arguments=(*arguments_of(release), *arguments),
        settings=settings if "--dp-size" in arguments else {},
        python_path=[folder / "exporter"] if "--enable-metrics" in arguments else [],
        runtime=folder,
        forks=False,
    ) as running:
        replies = complete(running.url, _REQUESTS)
        assert len(replies) == len(_REQUESTS)
        yield running, replies


def _seen(
    running: Server, *, expected: int, runs: bool = True
) -> tuple[dict[str, Process], list[str], str]:
    """What there is once as many processes as expected are shown, or after a while."""

    def is_settled() -> bool:
        shown = processes(running)
        roles = [process["role"] for process in shown]
        ran = [any(p["ran"] for p in process["patches"]) for process in shown]
        schedulers = [runs and name.startswith("scheduler") for name in roles]
        # A process gives itself a title some time after its start.
        titles = _titles(running, without=[running.group])
        named = all(title.startswith("sglang::") for title in titles)
        return len(shown) == expected and ran == schedulers and named

    wait_for(is_settled, every_s=1)
    shown = processes(running)
    titles = _titles(running, without=[process["pid"] for process in shown])
    return {process["role"]: process for process in shown}, titles, report(running, "status")


_SERIES = r'sglang_perf_patches_{}\{{patch="(?P<patch>[^"]*)",pid="(?P<pid>\d+)"\}} (?P<value>.*)'


def _install_exporter(environment: Environment, folder: Path) -> None:
    """What stock's ``--enable-metrics`` needs and the slim environment does not have."""
    if not folder.exists():
        pip = [environment.python, "-m", "pip", "--disable-pip-version-check", "install"]
        words = ["--quiet", "--no-deps", f"--target={folder}", "prometheus-client==0.22.1"]
        subprocess.run([*pip, *words], check=True)


def _metrics(running: Server) -> list[str]:
    """The lines of the server's ``/metrics`` that are ours, once they are up to date."""
    lines: list[str] = []

    def have_what_ran() -> bool:
        with urllib.request.urlopen(f"{running.url}/metrics", timeout=limit_s()) as response:
            lines[:] = response.read().decode().splitlines()
        ran = [
            f'ran{{patch="{patch["id"]}",pid="{process["pid"]}"}} 1.0'
            for process in processes(running)
            for patch in process["patches"]
            if patch["ran"]
        ]
        return all(f"sglang_perf_patches_{series}" in lines for series in ran)

    wait_for(have_what_ran, every_s=1)
    return [line for line in lines if line.startswith("sglang_perf_patches")]


def _log(running: Server) -> list[str]:
    lines = running.log.read_text(errors="replace").splitlines()
    ours = [line for line in lines if "sglang-perf-patches: " in line]
    return [line for line in ours if ": known fault of sglang " not in line]


def _titles(running: Server, without: Sequence[int]) -> list[str]:
    """The first words of the commands of the server's processes except some."""
    titles = []
    for pid in sorted(set(members(running.group)) - set(without)):
        with suppress(FileNotFoundError):  # it ended meanwhile
            command = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0 ").split("\0")
            if "multiprocessing.resource_tracker" not in " ".join(command):  # Python's own
                titles.append(command[0])
    return titles
