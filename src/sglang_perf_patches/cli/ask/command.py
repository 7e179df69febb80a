"""Parses a server's command as an operator types it, with what stands in front of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...model.errors import OperatorError
from ...model.uses import NO_MLX
from . import shell
from .front import SHELLS, Front, is_python, of_python

_LAUNCHERS = ("sglang.launch_server", "sglang.srt.entrypoints.http_server")
_DYNAMO = "dynamo.sglang"
_SCRIPT = "launch_server.py"
_FORMS = "`python -m sglang.launch_server --model-path MODEL ...` or `sglang serve ...`"


class ParsedCommand(NamedTuple):
    """A command that was understood."""

    arguments: tuple[str, ...]  # the server's own
    environment: Mapping[str, str]  # the server's
    under_run: bool  # ``sglang-perf-patches run`` starts it
    python: tuple[str, ...] = ()  # what starts its Python; the script ``sglang`` stands for its own
    elsewhere: str = ""  # where that Python is, if not on this machine; see `front.Front`
    image: str = ""  # of its container
    by_dynamo: bool = False  # Dynamo starts it, which has arguments of its own
    ignored: tuple[str, ...] = ()  # parts of the command that do not belong to the server's


def computes_by_mlx(environment: Mapping[str, str]) -> bool:
    """Whether these variables have a server compute by MLX."""
    return environment.get("SGLANG_USE_MLX", "0").lower() not in NO_MLX


def is_for_another_mac(environment: Mapping[str, str]) -> bool:
    """Whether these variables make a server for a Mac, and this machine is none."""
    return computes_by_mlx(environment) and sys.platform != "darwin"


def parse(command: Sequence[str], environment: Mapping[str, str]) -> ParsedCommand:
    """Parse the words of a command that would start in an environment.

    Raises:
        OperatorError: it starts no sglang server, or hides it behind something unknown.
    """
    words, cut = shell.command_of(command)
    ignored = [cut] if cut else []
    found = _parsed(words, Front(dict(environment)), ignored)
    return found._replace(ignored=tuple(ignored))


def _parsed(words: list[str], front: Front, ignored: list[str]) -> ParsedCommand:
    typed = " ".join(words)
    front.take(words)
    if not words:
        raise OperatorError(f"a command is missing after --: give {_FORMS}")
    name = os.path.basename(words[0])
    if name in SHELLS:
        return _of_script(words, front, ignored)
    options: list[str] = []
    if name == "sglang" and words[1:2] == ["serve"]:
        module, rest = _LAUNCHERS[0], _of_serve(words[2:])
    elif is_python(name):
        options, module, rest = of_python(words[1:])
        module = _LAUNCHERS[0] if os.path.basename(module) == _SCRIPT else module
    else:
        raise OperatorError(f"can't see which command `{words[0]}` starts: give {_FORMS} after --")
    if module not in {*_LAUNCHERS, _DYNAMO}:
        raise OperatorError(f"`{typed}` starts no sglang server: give {_FORMS}")
    return ParsedCommand(
        tuple(rest),
        dict(front.variables),
        front.under_run,
        (words[0], *options),
        front.elsewhere,
        front.image,
        module == _DYNAMO,
    )


def _of_script(words: list[str], front: Front, ignored: list[str]) -> ParsedCommand:
    """The server that ``bash -c SCRIPT`` starts: the first one of its commands that is one."""
    at = next((at for at, word in enumerate(words) if word.strip("-").endswith("c")), 0)
    if not words[at].startswith("-") or len(words) < at + 2:
        raise OperatorError(f"can't see which command `{words[0]}` starts: give {_FORMS} after --")
    why = OperatorError(f"`{' '.join(words)}` starts no sglang server: give {_FORMS}")
    found: ParsedCommand | None = None
    for each in shell.commands(words[at + 1], front.variables):
        text = " ".join(each)
        if found is not None:
            ignored.append(text)
        elif all(map(shell.ASSIGNMENT.match, each[each[0] == "export" :])):
            for word in each[each[0] == "export" :]:
                front.assign(word)
        elif each[0] in {"source", "."} and each[1:] and each[1].endswith("/bin/activate"):
            front.activate(Path(each[1]).parent.parent)
        else:
            try:
                found = _parsed(each, front, ignored)
            except OperatorError as error:
                why = error
                ignored.append(text)
    if found is None:
        raise why
    return found


def _of_serve(words: Sequence[str]) -> list[str]:
    """The server's arguments from those of ``sglang serve``, which takes the model first."""
    rest = list(words)
    if rest and not rest[0].startswith("-"):
        rest.insert(0, "--model-path")
    for at, word in enumerate(rest):
        if word.partition("=")[0] == "--model-type":
            kind = word.partition("=")[2] or "".join(rest[at + 1 : at + 2])
            if kind not in {"auto", "llm"}:
                raise OperatorError(f"--model-type {kind}: the patches are for language models")
            del rest[at : at + (1 if "=" in word else 2)]
            break
    return rest
