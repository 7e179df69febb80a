"""Finds the Python that an operator's command starts, and whether its server gets the patches."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..model.errors import OperatorError
from .ask.command import is_python, take_front

_LIMIT_S = 60
_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}
_CUTS_OFF = re.compile(r"-[A-Za-z]*[IES]")
_PROBE = """
import sys
from importlib.util import find_spec
finders = [one for one in sys.meta_path if type(one).__name__ != "_Watcher"]
is_run = finders != sys.meta_path
sys.meta_path[:] = finders
if find_spec("sglang"):
    if not find_spec("sglang_perf_patches"):
        print("That Python can't import sglang_perf_patches: install it next to its sglang.")
    elif not is_run:
        from sglang_perf_patches.cli import entry_point
        print(entry_point.obstacle_here())
"""


def of(command: Sequence[str], path: str | None = None) -> list[str]:
    """The first words of a command, up to its Python and that Python's options.

    Args:
        command: ``python …`` or the script ``sglang``; also after what `take_front` knows.
        path: where programs are searched; None means PATH.

    Returns:
        words that start that Python when ``-c SCRIPT`` follows; empty if it is unknown.
    """
    words = list(command)
    try:
        take_front(words, {})
    except OperatorError:
        return []
    before = list(command[: len(command) - len(words)])
    if not words or (program := shutil.which(words[0], path=path)) is None:
        return []
    if is_python(words[0]):
        return [*before, words[0], *_options(words[1:])]
    python = Path(program).resolve().with_name("python3")
    return [*before, str(python)] if os.path.basename(program) == "sglang" else []


def cutting_off(words: Sequence[str]) -> str:
    """The option by which a Python ignores the environment that ``run`` sets; "" if none does."""
    return next(filter(_CUTS_OFF.match, words), "")


def obstacle(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Why a server of this command would run without patches; "" if nothing speaks against it.

    It starts the command's Python once, with a script that imports neither sglang nor a patch.

    Args:
        command: the operator's command, with our ``run`` before it if that starts it.
        environment: the server's environment.
    """
    python = of(command, environment.get("PATH"))
    if not python:
        return ""
    try:
        done = subprocess.run(
            [*python, "-c", _PROBE],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    why, option = done.stdout.strip(), cutting_off(python)
    return f"{why} {option} keeps `sglang-perf-patches run` out." if why and option else why


def _options(words: Sequence[str]) -> list[str]:
    """The options for Python itself, which stand before a script, ``-m`` or ``-c``."""
    options: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in _WITH_VALUE:
            options += [word, next(rest, "")]
            continue
        option = re.match(r"-[bBdEhiIOPqRsSuvVx?]+|-[WX].+", word)
        if option:
            options.append(option[0])
        if option is None or option[0] != word:  # ``-Im MODULE`` has both
            break
    return options
