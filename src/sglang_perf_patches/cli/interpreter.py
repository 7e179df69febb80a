"""Finds the Python that an operator's command starts, and whether its server gets the patches."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import entry_point
from .ask.command import CommandError, is_python, take_front

_LIMIT_S = 60
_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}
_CUTS_OFF = re.compile(r"-[A-Za-z]*[IES]")
_PROBE = f"""
import importlib.util, json, os, sys
from importlib.metadata import entry_points
watched = any(type(finder).__name__ == "_Watcher" for finder in sys.meta_path)
sys.meta_path[:] = [one for one in sys.meta_path if type(one).__name__ != "_Watcher"]
spec = importlib.util.find_spec("sglang")
places = (spec and spec.submodule_search_locations) or ()
parts = {entry_point.GROUP!r}.split(".")[1:]
print(json.dumps({{
    "watched": watched,
    "sglang": bool(spec),
    "package": importlib.util.find_spec("sglang_perf_patches") is not None,
    "loads": any(os.path.exists(os.path.join(place, *parts, "__init__.py")) for place in places),
    "entry": any(entry_points(group={entry_point.GROUP!r}, name={entry_point.NAME!r})),
    "allowed": os.environ.get("SGLANG_PLUGINS", ""),
}}))
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
    except CommandError:
        return []
    before = list(command[: len(command) - len(words)])
    if not words or (program := shutil.which(words[0], path=path)) is None:
        return []
    if is_python(words[0]):
        return [*before, words[0], *_options(words[1:])]
    python = _of_script(Path(program)) if os.path.basename(program) == "sglang" else []
    return [*before, *python] if python else []


def cutting_off(words: Sequence[str]) -> str:
    """The option by which a Python ignores the environment that ``run`` sets; "" if none does."""
    return next(filter(_CUTS_OFF.match, words), "")


def obstacle(
    command: Sequence[str], environment: Mapping[str, str], prefix: Sequence[str] = ()
) -> str:
    """Why a server of this command would run without patches; "" if nothing speaks against it.

    It starts the command's Python once, with a script that imports neither sglang nor a patch.

    Args:
        command: the operator's command.
        environment: the server's environment.
        prefix: the words before the command.
    """
    python = of(command, environment.get("PATH"))
    seen = _probed([*prefix, *python], environment) if python else None
    if seen is None or not seen["sglang"] or (seen["watched"] and seen["package"]):
        return ""
    name = next(filter(is_python, python))
    if not seen["package"]:
        return f"`{name}` can't import sglang_perf_patches: install it next to that sglang"
    if not seen["loads"]:
        option = cutting_off(python)
        why = f" {option} keeps `sglang-perf-patches run` out." if option else ""
        return f"the sglang of `{name}` loads no plugins.{why}"
    if not seen["entry"]:
        return (
            f"`{name}` sees no entry point {entry_point.NAME}: install this package there with pip"
        )
    if entry_point.is_filtered(seen["allowed"]):
        return (
            f"{entry_point.FILTERED}: add the name, or put `sglang-perf-patches run` before the "
            "server's command"
        )
    return ""


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


def _of_script(program: Path) -> list[str]:
    """The Python in the first lines of a console script, as pip or uv writes them."""
    try:
        with program.open("rb") as file:
            lines = file.read(2000).decode(errors="replace").splitlines()[:2]
    except OSError:
        return []
    named = re.match(r"#!(?!/bin/sh)(?:\S*/env )?(\S+)", lines[0]) if lines else None
    if named is None and len(lines) > 1:  # of a path too long for a first line
        named = re.match(r"'''exec' (?:\"(?=[^\"]+\"))?([^\"]+?)\"? \"\$0\"", lines[1])
    return [named[1]] if named and is_python(named[1]) else []


def _probed(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, str] | None:
    """What the script found in that Python; None if it can't be run."""
    try:
        done = subprocess.run(
            [*words, "-c", _PROBE],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        seen: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return seen
