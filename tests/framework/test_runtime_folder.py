"""Where records can't be written or found: patches go live, and no record is an old one."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from running import STATUS_COMMAND, ask, serving
from throwaway import Throwaway

from linux_mlx.patience import wait_for

OBEYING = """
import ctypes, os, sys
if sys.platform == "linux" and os.getuid() == 0:
    drop_from_bounding_set, override, read_search = 24, 1, 2
    for capability in (override, read_search):
        ctypes.CDLL(None).prctl(drop_from_bounding_set, capability, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Runs a command, for which root is limited to what the permissions of a file allow."""

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
def obeying(
    throwaway: Throwaway, log: Path, *words: str, **variables: str | None
) -> Iterator[Callable[[str], str]]:
    """Asks a process that does as told."""
    command = ("-c", OBEYING, sys.executable, "-c", SERVE, *words)
    pipe = subprocess.PIPE
    with (
        log.open("a") as file,
        # Another process writes the log, because a full disk takes no log either.
        subprocess.Popen(["cat"], stdin=pipe, stdout=file, text=True) as logging,
        serving(throwaway, *command, stderr=logging.stdin, is_up="pending", **variables) as process,
    ):
        yield partial(ask, process)


def shown(throwaway: Throwaway, **variables: str | None) -> list[str]:
    """The states that `status` shows of the throwaway's one patch."""
    command = (sys.executable, "-c", OBEYING, *STATUS_COMMAND, "--json")
    done = throwaway.execute(*command, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return [patch["state"] for p in json.loads(done.stdout)["processes"] for patch in p["patches"]]


def test_no_record_rather_than_an_old_one(throwaway: Throwaway, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with obeying(throwaway, log) as ask:
        assert shown(throwaway) == ["pending"]
        assert ask("full") == "full"
        assert ask("import") == "live 102"
        assert wait_for(lambda: shown(throwaway) == [])
        assert list((throwaway.runtime / "sglang-perf-patches").iterdir()) == []
        assert wait_for(lambda: "live on sglang 1.0: one.step" in log.read_text())
        assert ask("not full") == "not full"
        assert wait_for(lambda: shown(throwaway) == ["live"])


@pytest.mark.parametrize("which", ["the folder", "its parent"])
def test_a_read_only_runtime_folder(throwaway: Throwaway, tmp_path: Path, which: str) -> None:
    log = tmp_path / "log"
    folder = throwaway.runtime
    if which == "the folder":
        folder = folder / "sglang-perf-patches"
        folder.mkdir()
        (folder / "1-1.json").write_text("{}")  # of a process that has ended: it can't be removed
    folder.chmod(0o500)
    try:
        with obeying(throwaway, log) as ask:
            assert ask("import") == "live 102"
            assert shown(throwaway) == []
            assert wait_for(lambda: "live on sglang 1.0: one.step" in log.read_text())
        assert "Traceback" not in log.read_text()
        (line,) = (each for each in log.read_text().splitlines() if "will not show process" in each)
        assert line.startswith("WARNING:sglang_perf_patches:")
    finally:
        folder.chmod(0o700)


def test_no_home_and_no_folder_named(throwaway: Throwaway, tmp_path: Path) -> None:
    log = tmp_path / "log"
    lacking = dict.fromkeys(throwaway.environment().keys() - {"PYTHONPATH", "PATH"})
    with obeying(throwaway, log, **lacking) as ask:
        assert ask("import") == "live 102"
        assert "live" in shown(throwaway, **lacking)
        assert wait_for(lambda: "live on sglang 1.0: one.step" in log.read_text())
    # And with no temporary folder that takes a file.
    with obeying(throwaway, log, "full", **lacking) as ask:
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
