"""The command on every kind of stdout: a terminal, no colour, ASCII, a full disk."""

import fcntl
import os
import pty
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from struct import pack

import pytest
from throwaway import Throwaway

SETS = """
import throwaway_patches as t
from dataclasses import replace
t.use(t.STEP, replace(t.HELPER, summary="word " * 40 + "…"), t.POLICY)
"""
COMMAND = (sys.executable, "-m", "sglang_perf_patches")


@pytest.fixture
def prepared(throwaway: Throwaway) -> Throwaway:
    throwaway.put("sitecustomize.py", SETS)
    return throwaway


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_the_list_fits_the_terminal(prepared: Throwaway, columns: int) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, pack("HHHH", 24, columns, 0, 0))
    environment = prepared.environment(TERM="xterm", COLUMNS=None, LINES=None, NO_COLOR=None)
    process = subprocess.Popen([*COMMAND, "list", "--all"], env=environment, stdout=theirs)
    os.close(theirs)
    printed = b""
    with suppress(OSError):  # the other end is closed
        while part := os.read(ours, 4096):
            printed += part
    os.close(ours)
    assert process.wait() == 0
    shown = printed.decode().replace("\r\n", "\n")
    assert "\033" not in shown
    lines = shown.partition("\n\n")[2].partition("This release")[0].splitlines()
    assert max(map(len, lines)) <= columns
    assert shown.count("word") == 40


@pytest.mark.parametrize("words", [("list",), ("explain", "two.helper"), ("status", "--json")])
def test_an_ascii_stdout_loses_one_character(prepared: Throwaway, words: tuple[str, ...]) -> None:
    done = prepared.command(*words, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


@pytest.mark.parametrize(
    ("words", "stdout", "said"),
    [
        *((words, "/dev/full", "No space left on device") for words in ("list", "list --json")),
        ("explain one.step", "/dev/full", "No space left on device"),
        *((words, "&-", "standard output is closed") for words in ("list", "status", "doctor")),
        ("help states", "&-", "standard output is closed"),
    ],
)
def test_a_stdout_that_takes_nothing_is_one_sentence(
    prepared: Throwaway, words: str, stdout: str, said: str
) -> None:
    done = prepared.execute("sh", "-c", f"exec {' '.join(COMMAND)} {words} >{stdout}")
    assert done.returncode == 2
    assert done.stderr == f"sglang-perf-patches: can't write: {said}\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sta", {"status "}),
        ("explain two", {"two", "two.helper", "two.policy"}),
        ("verify one.s", {"one.step "}),
        ("status --al", {"--all "}),
        ("list --sglang-v", {"--sglang-version "}),
    ],
)
def test_a_shell_completes_verbs_options_and_patches(
    prepared: Throwaway, tmp_path: Path, line: str, expected: set[str]
) -> None:
    typed = f"sglang-perf-patches {line}"
    answer = tmp_path / "answer"
    prepared.put("sitecustomize.py", f"{SETS}\nt.sets.NAMES = ('one', 'two')\n")
    prepared.command(
        _ARGCOMPLETE="1",
        _ARGCOMPLETE_IFS="\n",
        _ARGCOMPLETE_SUPPRESS_SPACE="0",
        _ARGCOMPLETE_STDOUT_FILENAME=str(answer),
        COMP_LINE=typed,
        COMP_POINT=str(len(typed)),
    )
    assert set(answer.read_text().split("\n")) == expected


def test_a_command_may_run_without_stdout(throwaway: Throwaway, tmp_path: Path) -> None:
    command = f"exec {' '.join(COMMAND)} run touch {tmp_path / 'ran'} >&-"
    assert throwaway.execute("sh", "-c", command).returncode == 0
    assert (tmp_path / "ran").exists()
