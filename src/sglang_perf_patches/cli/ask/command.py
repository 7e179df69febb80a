"""Parses a server's command as an operator types it, with the shell's words around it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template

from ...model.errors import OperatorError
from ...model.setups import NO_MLX
from .front import ASSIGNMENT, SHELLS, ParsedCommand, is_python, of_python

_LAUNCHERS = ("sglang.launch_server", "sglang.srt.entrypoints.http_server")
_DYNAMO = "dynamo.sglang"
_SCRIPT = "launch_server.py"
_FORMS = "`python -m sglang.launch_server --model-path MODEL ...` or `sglang serve ...`"

_END = ("|", "|&", "||", "&&", "&", ";")
_REDIRECTION = re.compile(r"(?:\d*>>?|&>>?)(?P<to>(?:&\d+|&-|[\w./~-]+)?)", re.ASCII)
_PART = re.compile(
    r"""[^\S\n]*(?:
    (?P<comment>\#[^\n]*)
    | (?P<redirection>(?:\d*(?:>>?|<)|&>>?)&?[^\S\n]*[^\s;|&<>]*)
    | (?P<end>&&|\|\||\|&|[;|&\n])
    | (?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\s;|&<>\\'"])+)
    )""",
    re.VERBOSE | re.DOTALL,
)


def computes_by_mlx(environment: Mapping[str, str]) -> bool:
    """Whether these variables have a server compute by MLX."""
    return environment.get("SGLANG_USE_MLX", "0").lower() not in NO_MLX


def is_for_another_mac(environment: Mapping[str, str]) -> bool:
    """Whether these variables make a server for a Mac, and this machine is none."""
    return computes_by_mlx(environment) and sys.platform != "darwin"


def parse(command: Sequence[str], environment: Mapping[str, str]) -> ParsedCommand:
    """The server that a command starts in an environment; OperatorError if none can be seen."""
    words, cut = _without_shell(command)
    parsed = ParsedCommand(dict(environment), ignored=[cut] if cut else [])
    _parse(words, parsed)
    return parsed


def _parse(words: list[str], parsed: ParsedCommand) -> None:
    typed = " ".join(words)
    parsed.take(words)
    if not words:
        raise OperatorError(f"a command is missing after --: give {_FORMS}")
    name = os.path.basename(words[0])
    if name in SHELLS:
        _parse_script(words, parsed)
        return
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
    parsed.arguments, parsed.python = tuple(rest), (words[0], *options)
    parsed.by_dynamo = module == _DYNAMO


def _parse_script(words: list[str], parsed: ParsedCommand) -> None:
    """``bash -c SCRIPT`` starts the first of its commands that is a server."""
    at = next((at for at, word in enumerate(words) if word.strip("-").endswith("c")), 0)
    if not words[at].startswith("-") or len(words) < at + 2:
        raise OperatorError(f"can't see which command `{words[0]}` starts: give {_FORMS} after --")
    why = OperatorError(f"`{' '.join(words)}` starts no sglang server: give {_FORMS}")
    is_found = False
    for each in _commands(words[at + 1], parsed.environment):
        text = " ".join(each)
        assigned = each[1:] if each[0] == "export" else each
        if is_found:
            parsed.ignored.append(text)
        elif all(map(ASSIGNMENT.match, assigned)):
            for word in assigned:
                parsed.assign(word)
        elif each[0] in {"source", "."} and each[1:] and each[1].endswith("/bin/activate"):
            parsed.activate(Path(each[1]).parent.parent)
        else:
            try:
                _parse(each, parsed)
                is_found = True
            except OperatorError as error:
                why = error
                parsed.ignored.append(text)
    if not is_found:
        raise why


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


def _without_shell(words: Sequence[str]) -> tuple[list[str], str]:
    """The words of a command before the shell's own ones, and the text of those.

    A shell takes ``2>&1 | tee log`` itself, unless they are quoted, or no shell is there.
    """
    kept, cut = [], []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        found = _REDIRECTION.fullmatch(word)
        if word in _END or word.startswith("#"):
            cut += [word, *rest]
            break
        if found or word == "<":
            cut.append(word)
            if not (found and found["to"]) and rest:
                cut.append(rest.pop(0))
        else:
            kept.append(word)
    return kept, " ".join(cut)


def _commands(script: str, variables: Mapping[str, str]) -> Iterator[list[str]]:
    """The words of each command of a script of ``bash -c``, without redirections and comments.

    `variables` has the values of what it names, such as ``$MODEL``; read for each command anew.
    """
    words: list[str] = []
    for part in _PART.finditer(script.replace("\\\n", " ") + "\n"):
        if word := part["word"]:
            if not word.startswith("'"):
                word = Template(word).safe_substitute(variables)
            words += shlex.split(word) or [""]
        elif part["end"] and words:
            yield words
            words = []
