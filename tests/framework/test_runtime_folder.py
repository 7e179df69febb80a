"""Where records can't be written or found: patches go live, and no record is an old one."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from running import STATUS_COMMAND, ask
from throwaway import Throwaway

from linux_mlx.patience import wait_for

SERVE = """
import logging, resource, sys
logging.basicConfig(level=logging.INFO)
from throwaway_patches import *
import sglang_perf_patches as ours
use(STEP)

def is_full(full):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0 if full else limit[1], limit[1]))

is_full("full" in sys.argv)
print(ours.activate().of("one.step").state, flush=True)
for line in sys.stdin:
    if line == "import\\n":
        import sglang.srt.a as a
        print(ours.activate().of("one.step").state, a.Worker().step(1), flush=True)
    else:
        is_full(line == "full\\n")
        print("full" if line == "full\\n" else "not full", flush=True)
"""


@contextmanager
def serving(environment: dict[str, str], log: Path, *words: str) -> Iterator[Callable[[str], str]]:
    """A process that does as told; ``ask("")`` reads what it said without being asked."""
    with log.open("a") as file:  # written by another, because a full disk takes no log either
        logging = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, *words],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=logging.stdin,
        text=True,
        preexec_fn=_obey_permissions,
    )
    try:
        yield partial(ask, process)
    finally:
        process.kill()
        process.communicate()
        logging.communicate()


def shown(environment: dict[str, str]) -> list[str]:
    """The states that `status` shows of the throwaway's one patch."""
    done = subprocess.run(
        [*STATUS_COMMAND, "--json"],
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=_obey_permissions,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [patch["state"] for p in json.loads(done.stdout)["processes"] for patch in p["patches"]]


def test_no_record_rather_than_an_old_one(throwaway: Throwaway, tmp_path: Path) -> None:
    environment, log = throwaway.environment(), tmp_path / "log"
    with serving(environment, log) as ask:
        assert ask("") == "pending"
        assert shown(environment) == ["pending"]
        assert ask("full") == "full"
        assert ask("import") == "live 102"
        assert wait_for(lambda: shown(environment) == [])
        assert list((throwaway.runtime / "sglang-perf-patches").iterdir()) == []
        assert wait_for(lambda: "live on sglang 1.0: one.step" in log.read_text())
        assert ask("not full") == "not full"
        assert wait_for(lambda: shown(environment) == ["live"])


@pytest.mark.parametrize("which", ["the folder", "its parent"])
def test_a_read_only_runtime_folder(throwaway: Throwaway, tmp_path: Path, which: str) -> None:
    environment, log = throwaway.environment(), tmp_path / "log"
    folder = throwaway.runtime / "sglang-perf-patches"
    if which == "the folder":
        folder.mkdir()
        (folder / "1-1.json").write_text("{}")  # of a process that has ended: it can't be removed
        folder.chmod(0o500)
    else:
        throwaway.runtime.chmod(0o500)
    try:
        with serving(environment, log) as ask:
            assert ask("") == "pending"
            assert ask("import") == "live 102"
            assert shown(environment) == []
            assert wait_for(lambda: "live on sglang 1.0: one.step" in log.read_text())
        assert "Traceback" not in log.read_text()
    finally:
        for path in (throwaway.runtime, folder):
            if path.exists():
                path.chmod(0o700)


def test_no_home_and_no_folder_named(throwaway: Throwaway, tmp_path: Path) -> None:
    kept = throwaway.environment()
    environment = {"PYTHONPATH": kept["PYTHONPATH"], "PATH": kept.get("PATH", os.defpath)}
    log = tmp_path / "log"
    with serving(environment, log) as ask:
        assert ask("") == "pending"
        assert ask("import") == "live 102"
        assert "live" in shown(environment)
        assert wait_for(lambda: "live on sglang 1.0: one.step" in log.read_text())
    # And with no temporary folder that takes a file.
    with serving(environment, log, "full") as ask:
        assert ask("") == "pending"
        assert ask("import") == "live 102"
        assert wait_for(lambda: log.read_text().count("live on sglang 1.0: one.step") == 2)
    assert "Traceback" not in log.read_text()


def test_status_without_any_folder_for_records(throwaway: Throwaway) -> None:
    done = throwaway.process(
        """
        import resource, sys
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        from sglang_perf_patches.cli import main
        sys.exit(main(["status"]))
        """,
        XDG_RUNTIME_DIR=None,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "no folder for records" in done.stderr


def _obey_permissions() -> None:
    """Limit root to what the permissions of a file allow."""
    if sys.platform == "linux" and os.getuid() == 0:
        drop_from_bounding_set, override, read_search = 24, 1, 2
        for capability in (override, read_search):
            ctypes.CDLL(None).prctl(drop_from_bounding_set, capability, 0, 0, 0)
