"""Runs a script of the tests beside a released sglang, in a process of its own on this CPU."""

import json
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
import forking
from linux_mlx.environments import environment, sglang_environment, variables
from linux_mlx.patience import limit_s
from linux_mlx.server import free_port
from sglang_perf_patches import downloads

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]  # for `tests.proof`
_SOURCE = _ROOT / "src"
_SHIMS = _HERE / "linux_mlx" / "shims"


@dataclass(frozen=True)
class Place:
    """An interpreter that can import a release and this project."""

    python: Path
    search: tuple[Path, ...]  # what PYTHONPATH holds
    settings: tuple[tuple[str, str], ...] = ()  # further variables
    beginning: str = ""  # how each script begins (`forking.BEGINNINGS`), so that a fork may run it
    release: Path | None = None  # the tree of which the fork has the main modules


def tree(release: str, *, beginning: str = "stubs", imported: bool = True) -> Place:
    """The release's Python files alone, with what they import on a CPU.

    Its modules are imported already when a script begins, unless `imported` is False.
    """
    python = environment(_HERE / "cpu.txt").python
    folder = downloads.tree(release)
    first = folder if imported and beginning in forking.OF_RELEASE else None
    search = (folder, _SOURCE, _HERE, _ROOT)
    return Place(python, search, beginning=beginning, release=first)


def slim(release: str) -> Place:
    """The release as pip installs it, slim, with MLX on the CPU."""
    python = sglang_environment(release).python
    return Place(python, (_SOURCE, _SHIMS, _ROOT), (("SGLANG_USE_MLX", "1"),), "mlx")


def run(place: Place, *words: str | Path, given: str | None = None, **more: str) -> str:
    """What the interpreter of a place prints, with `given` as input and `more` variables."""
    settings = {**dict(place.settings), "OMP_NUM_THREADS": "1", **more}
    settings = variables(PYTHONPATH=os.pathsep.join(map(str, place.search)), **settings)
    if place.beginning and isinstance(words[0], Path):
        script, *rest = words
        code, out, err = forked.run(
            place.python,
            script,
            rest,
            beginning=place.beginning,
            search=tuple(each for each in place.search if each in (_SOURCE, _SHIMS, _ROOT)),
            release=place.release,
            variables=settings,
            given=given,
            limit_s=limit_s(),
        )
        assert code == 0, f"{out[-3000:]}\n{err[-4000:]}"
        return out
    done = subprocess.run(
        [place.python, "-W", "ignore", *words],
        env=settings,
        input=given,
        capture_output=True,
        text=True,
        timeout=limit_s(),
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def answers(place: Place, script: Path, *words: str, **options: Any) -> list[Any]:
    """The JSON objects that a script prints, one a line; otherwise like `run`."""
    lines = run(place, script, *words, **options).splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"')]


def ranks(
    release: str, script: Path, selections: Sequence[str], *words: str
) -> list[dict[str, Any]]:
    """What the ranks of one server print, each with its selection of patches.

    Each is ``python SCRIPT RANK RANKS PORT SELECTION WORDS``; they meet at the port.
    """
    place, port = tree(release), str(free_port())

    def play(rank: int) -> dict[str, Any]:
        about = (str(rank), str(len(selections)), port, selections[rank])
        (told,) = answers(place, script, *about, *words)
        return dict(told)

    with ThreadPoolExecutor(len(selections)) as all_ranks:
        return list(all_ranks.map(play, range(len(selections))))


Job = tuple[str, dict[str, Any]]
"""A function of a set's ``jobs.py``, and its arguments."""


def play(place: Place, module: Path, jobs: Sequence[Job], **options: Any) -> list[dict[str, Any]]:
    """What a module's functions return, called in order in one process; the options are `run`'s.

    A line for each job, with its ``value`` or ``error``: see `on_release`.
    """
    script = _HERE / "on_release.py"
    lines = answers(place, script, str(module), given=json.dumps(jobs), **options)
    assert [line["job"] for line in lines] == [name for name, _ in jobs], lines
    return lines


def value(place: Place, module: Path, job: str, /, **options: Any) -> Any:
    """What a function of a module returns on a release, where it must not fail; see `play`."""
    (line,) = play(place, module, [(job, options.pop("arguments", {}))], **options)
    assert "error" not in line, f"{job}:\n{line.get('error')}"
    return line["value"]
