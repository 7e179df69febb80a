"""Finds the Python that an operator's command starts, its sglang, and whether it gets patches."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..compat import source
from ..compat.source import Tree, TreeError
from ..model import releases
from ..model.errors import OperatorError
from . import entry_point
from .ask import command
from .ask.front import ParsedCommand, is_python, of_python

_LIMIT_S = 60
_CUTS_OFF = re.compile(r"-[A-Za-z]*[IES]")
_PROBE = """
import json
import sys
from importlib.util import find_spec
finders = [one for one in sys.meta_path if type(one).__name__ != "_Watcher"]
is_run = finders != sys.meta_path or sys.argv[1:] == ["run"]
sys.meta_path[:] = finders
found = find_spec("sglang")
folder, why = (list(found.submodule_search_locations or []) if found else [])[:1], ""
if folder and not find_spec("sglang_perf_patches"):
    why = "can't import sglang_perf_patches: install it next to its sglang."
elif folder and not is_run:
    from sglang_perf_patches.cli import entry_point
    why = entry_point.why_not_loaded_here()
print(json.dumps(["".join(folder), why]))
"""
_SHEBANG = re.compile(r"#!\s*(\S*python[\d.]*)\s*$")
_EXECUTED = re.compile(r"""'''exec' "?([^"]*?python[\d.]*)"? """)
"""How a script for ``sh`` starts its Python, whose path is too long for a shebang."""
_TAG = re.compile(r"[:-]v?(\d+\.\d+\.\d+(?:\.post\d+)?)(?![\d.])")


def isolating_flag(command: Sequence[str]) -> str:
    """The option by which a command's Python ignores what ``run`` sets; "" if none does."""
    words = list(command)
    try:
        ParsedCommand({}).take(words)
    except OperatorError:
        return ""
    options = of_python(words[1:])[0] if words and is_python(words[0]) else []
    return next(filter(_CUTS_OFF.match, options), "")


def obstacle(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Why a server of this command would run without patches; "" if nothing speaks against it.

    Also "" if its Python or that one's sglang is not known here. `words` has our ``run`` in front
    if that starts the command.
    """
    try:
        there = place(command.parse(words, environment))
    except OperatorError:
        return ""
    return there.obstacle if there.python else ""


class Place(NamedTuple):
    """The sglang to ask about a command, and the Python that asks it."""

    tree: Tree
    python: tuple[str, ...] = ()  # what starts the command's Python; empty if this Python asks
    obstacle: str = ""  # why that Python would load no patch
    note: str = ""  # a sentence, if it is not the command's own sglang


def place(asked: ParsedCommand) -> Place:
    """The sglang that a command starts; this Python's, with a note, if the command's is not here.

    Raises:
        OperatorError: neither is here, or the command's image has another release.
    """
    path = asked.environment.get("PATH", os.defpath)
    words = [] if asked.elsewhere else _started(asked.python, path)
    option = isolating_flag(words)
    is_run = asked.under_run and not option
    folder, why = _probed(words, asked.environment, is_run=is_run)
    if folder:
        if why and asked.under_run and option:
            why = f"{why} {option} keeps `sglang-perf-patches run` out."
        return Place(source.at(folder), tuple(words), why)
    if asked.elsewhere:
        why = f"the command runs in {asked.elsewhere}"
    elif words:
        why = f"the command's Python, {words[0]}, has no sglang"
    else:
        why = f"`{' '.join(asked.python)}` is not on this machine"
    try:
        tree = source.installed()
    except TreeError as error:
        missing = "this Python has none either: name its sglang with --sglang-version"
        raise OperatorError(f"{why}, and {missing}") from error
    tag = _TAG.search(asked.image)
    if tag and tag[1] in releases.KNOWN and tag[1] != tree.version:
        raise OperatorError(
            f"{asked.elsewhere} has sglang {tag[1]}, and this Python has {tree.version}: add "
            f"--sglang-version {tag[1]}"
        )
    note = (
        f"{why}: this is the answer of the sglang of {sys.executable}; name another one with "
        "--sglang-version or --sglang-path."
    )
    return of_tree(tree, asked, note[0].upper() + note[1:])


def of_tree(tree: Tree, asked: ParsedCommand, note: str = "") -> Place:
    """A sglang that this Python asks about a command."""
    why = "" if asked.under_run else entry_point.why_not_loaded(tree, asked.environment)
    return Place(tree, obstacle=why, note=note)


def _started(words: Sequence[str], path: str) -> list[str]:
    """The words that start a command's Python, with its path; empty if it is not here."""
    program = shutil.which(words[0], path=path)
    if program is None or is_python(words[0]):
        return [program, *words[1:]] if program else []
    with open(program, "rb") as script:
        first, second = (script.readline(1000).decode("utf-8", "replace") for _ in range(2))
    named = _SHEBANG.match(first) or _EXECUTED.match(second)
    python = Path(named[1]) if named else Path(program).resolve().with_name("python3")
    return [str(python)] if python.exists() else []


def _probed(
    python: Sequence[str], environment: Mapping[str, str], *, is_run: bool
) -> tuple[str, str]:
    """The folder of a Python's sglang, and why its servers load no patch; "" if not known."""
    words = [*python, "-c", _PROBE, *(["run"] if is_run else [])]
    try:
        done = subprocess.run(
            words, env=dict(environment), capture_output=True, text=True, timeout=_LIMIT_S
        )
        folder, why = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return "", ""
    return folder, f"{python[0]} {why}" if why.startswith("can't") else why
