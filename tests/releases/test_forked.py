"""A fork runs a script as a new interpreter would, and nothing of it is left for the next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forked
import released

Run = Callable[..., tuple[int, str, str]]

SOURCE = Path(__file__).parents[2] / "src"

SAYS = """
import json, os, sys
from tests.proof import stubs
stubs.lend()
print("to stderr", file=sys.stderr)
print(json.dumps({
    "words": sys.argv[1:],
    "name": __name__,
    "input": sys.stdin.read(),
    "variables": dict(os.environ),
    "path": sys.path,
    "sglang": sorted(name for name in sys.modules if name.partition(".")[0] == "sglang"),
    "earlier": getattr(os, "left_behind", None),
}))
os.left_behind = True
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run(text, *words)``: what came of a script with this text."""
    python = released.tree("0.5.23").python
    script = tmp_path / "script.py"

    def start(
        text: str, *words: str, given: str | None = None, limit_s: float = 300
    ) -> tuple[int, str, str]:
        script.write_text(text)
        return forked.run(
            python,
            script,
            words,
            beginning="stubs",
            search=(SOURCE, SOURCE.parent),
            variables={"ONE": "1", "PYTHONPATH": "/first:/second"},
            given=given,
            limit_s=limit_s,
        )

    return start


def test_it_has_its_arguments_input_variables_and_path(run: Run, tmp_path: Path) -> None:
    code, out, err = run(SAYS, "a", "b c", given="some\ntext")
    answer: dict[str, Any] = json.loads(out)
    assert (code, err) == (0, "to stderr\n")
    assert (answer["words"], answer["name"], answer["input"]) == (
        ["a", "b c"],
        "__main__",
        "some\ntext",
    )
    assert answer["path"][:3] == [str(tmp_path), "/first", "/second"]
    lent = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    assert (
        answer["variables"].items() >= {"ONE": "1", "PYTHONPATH": "/first:/second", **lent}.items()
    )
    assert "HOME" not in answer["variables"]
    assert answer["sglang"] == []


def test_nothing_of_an_earlier_one_is_left(run: Run) -> None:
    for _ in range(2):
        assert json.loads(run(SAYS)[1])["earlier"] is None


@pytest.mark.parametrize(
    ("text", "code", "err"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit('a reason')", 1, "a reason\n"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import atexit, sys; atexit.register(print, 'late', file=sys.stderr)", 0, "late\n"),
        (
            "import sys, threading;"
            "threading.Timer(0.1, lambda: print('thread', end='', file=sys.stderr)).start()",
            0,
            "thread",
        ),
    ],
)
def test_its_end_is_told(run: Run, text: str, code: int, err: str) -> None:
    assert run(text) == (code, "", err)


def test_an_exception_is_shown(run: Run) -> None:
    code, _, err = run("1 / 0")
    assert code == 1
    assert err.rstrip().endswith("ZeroDivisionError: division by zero")


def test_one_that_takes_too_long_is_killed_and_the_next_runs(run: Run) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run("import time; time.sleep(600)", limit_s=0.5)
    assert run("print('next')")[:2] == (0, "next\n")


ASK = """
import sys
from pathlib import Path
import forked
forked.IDLE_S = 5
python, script, source = map(Path, sys.argv[1:])
for _ in sys.stdin:
    done = forked.run(
        python, script, (), beginning="mlx", search=(source,),
        variables={"PYTHONPATH": ""}, given=None, limit_s=300,
    )
    print(done[1], end="", flush=True)
"""


def test_processes_of_a_run_share_one_that_forks_and_it_ends_when_nobody_asks(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    # The parent handles this request, and has been forked by the one that is shared.
    script.write_text(
        "import os; stat = open(f'/proc/{os.getppid()}/stat').read()\n"
        "print(stat.rpartition(')')[2].split()[1])"
    )
    # This interpreter lacks what a script of MLX begins with, so there is nothing to import.
    python = sys.executable
    harness = str(Path(forked.__file__).parent)

    def started(run: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", ASK, python, script, SOURCE],
            cwd=Path(forked.__file__).parent,
            env={**os.environ, "PYTHONPATH": harness, forked.RUN: run},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def asked(process: subprocess.Popen[str]) -> int:
        assert process.stdin
        assert process.stdout
        process.stdin.write("\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    name = str(tmp_path)
    with started(name) as first, started(name) as second, started(f"{name}/another") as other:
        forking = asked(first)
        assert asked(second) == forking
        assert asked(other) != forking
        first.communicate()
        assert asked(second) == forking
        second.communicate()
        assert ends(forking)
        other.communicate()


def test_what_runs_for_a_process_that_is_killed_ends(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    pid = tmp_path / "pid"
    script.write_text(
        f"import os, time; open({str(pid)!r} + 'new', 'w').write(str(os.getpid()))\n"
        f"os.rename({str(pid)!r} + 'new', {str(pid)!r}); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", ASK, sys.executable, script, SOURCE],
        cwd=Path(forked.__file__).parent,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(forked.__file__).parent),
            forked.RUN: str(tmp_path),
        },
        stdin=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
        while not pid.exists():
            assert process.poll() is None
            time.sleep(0.1)
        process.kill()
    assert ends(int(pid.read_text()))


def ends(pid: int) -> bool:
    """Whether a process ends, even if nobody has asked for its exit code."""
    for _ in range(3000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


MLX = """
import json, os, sys
threads = len(os.listdir("/proc/self/task"))
import mlx.core as mx
print(json.dumps({
    "had": sorted({"mlx.core", "mlx_lm", "torch"} & sys.modules.keys()),
    "sglang": "sglang" in sys.modules,
    "threads": threads,
    "sum": mx.ones((64, 64)).sum().item(),
}))
"""


def test_a_fork_begins_with_mlx_and_computes_with_it(tmp_path: Path) -> None:
    """No thread of MLX may be there before the fork: none would be there after."""
    place = released.tree("0.5.23", beginning="mlx")
    script = tmp_path / "script.py"
    script.write_text(MLX)
    for _ in range(2):
        answer = json.loads(released.run(place, script))
        assert answer == {
            "had": ["mlx.core", "mlx_lm", "torch"],
            "sglang": False,
            "threads": 1,
            "sum": 4096.0,
        }
