"""A server's command, as an operator types it: its arguments, and the environment in front."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...model.errors import OperatorError

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_PYTHON = re.compile(r"python[\d.]*", re.ASCII)
_TRANSPARENT = ("exec", "nohup", "numactl", "taskset", "nice", "ionice", "stdbuf", "setsid", "time")
"""Programs that start the command behind their own options, and change nothing of the answer."""
_LAUNCHERS = ("sglang.launch_server", "sglang.srt.entrypoints.http_server")
_OURS = ("sglang-perf-patches", "sglang_perf_patches")
_FORMS = "`python -m sglang.launch_server --model-path MODEL ...` or `sglang serve ...`"


class CommandError(OperatorError, ValueError):
    """The words are not the command of a sglang server."""


@dataclass(frozen=True)
class Asked:
    """A command that was understood.

    Attributes:
        arguments: what the server parses.
        environment: of the server.
        under_run: whether `sglang-perf-patches run` starts it.
        program: the Python or the ``sglang`` that it names.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    under_run: bool
    program: str


def read(command: Sequence[str], environment: Mapping[str, str]) -> Asked:
    """Understand a command.

    Args:
        command: its words: assignments, ``env`` and ``sglang-perf-patches run`` may come first.
        environment: in which it would start.

    Raises:
        CommandError: it starts no sglang server, or hides it behind something unknown.
    """
    variables, under_run = dict(environment), False
    words = list(command)
    while words:
        word = words.pop(0)
        name = os.path.basename(word)
        if _ASSIGNMENT.match(word):
            variable, _, value = word.partition("=")
            variables[variable] = value
        elif name == "env":
            _read_env(words, variables)
        elif name in _OURS and words[:1] == ["run"]:
            under_run = _skip_run(words)
        elif name in _TRANSPARENT:
            while words and not _is_head(words[0]):
                words.pop(0)
        elif name == "sglang" and words[:1] == ["serve"]:
            return Asked(_of_serve(words[1:]), variables, under_run, word)
        elif _PYTHON.fullmatch(name):
            module, rest = _python(words)
            if module in _OURS and rest[:1] == ["run"]:
                words = rest
                under_run = _skip_run(words)
            elif module in _LAUNCHERS:
                return Asked(tuple(rest), variables, under_run, word)
            else:
                raise CommandError(f"`{' '.join(command)}` starts no sglang server: give {_FORMS}")
        else:
            raise CommandError(f"can't look behind `{word}`: give {_FORMS} after --")
    raise CommandError(f"a command is missing after --: give {_FORMS}")


def _is_head(word: str) -> bool:
    name = os.path.basename(word)
    known = {"env", "sglang", *_OURS, *_TRANSPARENT}
    return name in known or bool(_PYTHON.fullmatch(name) or _ASSIGNMENT.match(word))


def _read_env(words: list[str], variables: dict[str, str]) -> None:
    """Take the options of ``env``."""
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in {"-i", "-", "--ignore-environment"}:
            variables.clear()
        elif option == "-u" and words:
            variables.pop(words.pop(0), None)
        elif option.startswith("--unset="):
            variables.pop(option.partition("=")[2], None)
        elif option == "--":
            return
        else:
            raise CommandError(f"`env {option}` is not understood here: leave it out")


def _skip_run(words: list[str]) -> bool:
    del words[: 2 if words[1:2] == ["--"] else 1]
    return True


def _python(words: Sequence[str]) -> tuple[str, list[str]]:
    """The module that a Python is told to run, and its arguments; a script as its module."""
    for at, word in enumerate(words):
        if word == "-m":
            return "".join(words[at + 1 : at + 2]), list(words[at + 2 :])
        if os.path.basename(word) == "launch_server.py":
            return _LAUNCHERS[0], list(words[at + 1 :])
    return "", []


def _of_serve(words: Sequence[str]) -> tuple[str, ...]:
    """The server's arguments: ``serve`` takes the model first, and chooses a backend by itself."""
    rest = list(words)
    if rest and not rest[0].startswith("-"):
        rest.insert(0, "--model-path")
    for at, word in enumerate(rest):
        if word.partition("=")[0] == "--model-type":
            kind = word.partition("=")[2] or "".join(rest[at + 1 : at + 2])
            if kind not in {"auto", "llm"}:
                raise CommandError(f"--model-type {kind}: the patches are for language models")
            del rest[at : at + (1 if "=" in word else 2)]
            break
    return tuple(rest)
