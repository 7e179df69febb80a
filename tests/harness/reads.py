"""Notes which files of the checkout a process and its forks read, or that others may read any.

Standard library only: `forking` runs in environments that have nothing of the tests.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
noted: set[str] = set()
"""What this process has noted since somebody emptied it: paths below `ROOT`, and `ANY`."""
ANY = "*"
"""Noted where a process that nobody watches may read any file."""
_STARTS = {"subprocess.Popen", "os.posix_spawn", "os.exec", "os.system", "os.spawn"}
_UNWATCHED = ("python", "sglang-perf-patches", "sh", "bash", "env")
"""How the names of programs begin that may run code of ours."""


def watch(note: Callable[[str], object]) -> None:
    """Have `note` called with each path that is opened below `ROOT`, and with `ANY`."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path = arguments[0]
            if isinstance(path, str | bytes | os.PathLike):
                path = os.path.abspath(os.fsdecode(path))
                if is_ours(path):
                    note(source_of(path))
        elif event in _STARTS and _may_run_ours(arguments):
            note(ANY)

    sys.addaudithook(hook)


def loaded() -> set[str]:
    """The files below `ROOT` of the modules that this process has imported."""
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    return {source_of(file) for file in files if is_ours(file)}


def is_ours(path: str) -> bool:
    """Whether a path is below `ROOT`, and not of its environment."""
    return path.startswith(f"{ROOT}{os.sep}") and not path.startswith(f"{ROOT}{os.sep}.venv")


def source_of(path: str) -> str:
    """The path below `ROOT` of a file, of a module's source if it is a compiled one."""
    folder, is_compiled, name = path.rpartition("/__pycache__/")
    path = f"{folder}/{name.partition('.')[0]}.py" if is_compiled else path
    return os.path.relpath(path, ROOT)


def write_to(file: Path) -> None:
    """Write what this process has imported and what it and its forks will read, one a line."""
    place = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    seen: set[str] = set()

    def note(path: str) -> None:
        if path not in seen:
            seen.add(path)
            os.write(place, f"{path}\n".encode())

    for path in loaded():
        note(path)
    watch(note)


def _may_run_ours(arguments: tuple[Any, ...]) -> bool:
    words = [arguments[0], *(arguments[1] if len(arguments) > 1 and arguments[1] else ())]
    if any("forking.py" in os.fsdecode(word) for word in words if word):
        return False  # whose forks tell what they read
    names = [os.path.basename(os.fsdecode(word)) for word in words[:2] if word]
    return any(name.startswith(_UNWATCHED) for name in names)
