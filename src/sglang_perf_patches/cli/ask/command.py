"""Parses a server's command as an operator types it, with the environment in front of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...model.errors import OperatorError
from ...model.uses import NO_MLX

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_PYTHON = re.compile(r"python[\d.]*", re.ASCII)
_TRANSPARENT = ("exec", "nohup", "numactl", "taskset", "nice", "ionice", "stdbuf", "setsid", "time")
"""Programs that start a command after their own options and don't change its arguments."""
_LAUNCHERS = ("sglang.launch_server", "sglang.srt.entrypoints.http_server")
_OURS = ("sglang-perf-patches", "sglang_perf_patches")
_FORMS = "`python -m sglang.launch_server --model-path MODEL ...` or `sglang serve ...`"


@dataclass(frozen=True)
class Asked:
    """A command that was understood.

    Attributes:
        arguments: the server's own arguments.
        environment: the server's environment.
        under_run: whether ``sglang-perf-patches run`` starts it.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    under_run: bool


def computes_by_mlx(environment: Mapping[str, str]) -> bool:
    """Whether these variables have a server compute by MLX."""
    return environment.get("SGLANG_USE_MLX", "0").lower() not in NO_MLX


def read(command: Sequence[str], environment: Mapping[str, str]) -> Asked:
    """Parse a command.

    Args:
        command: its words; assignments, ``env`` and ``sglang-perf-patches run`` may come first.
        environment: the environment in which it would start.

    Raises:
        OperatorError: it starts no sglang server, or hides it behind something unknown.
    """
    variables, words = dict(environment), list(command)
    under_run = take_front(words, variables)
    if not words:
        raise OperatorError(f"a command is missing after --: give {_FORMS}")
    word, *rest = words
    name = os.path.basename(word)
    if name == "sglang" and rest[:1] == ["serve"]:
        return Asked(_of_serve(rest[1:]), variables, under_run)
    if not is_python(word):
        raise OperatorError(f"can't see which command `{word}` starts: give {_FORMS} after --")
    module, rest = _python(rest)
    if module not in _LAUNCHERS:
        raise OperatorError(f"`{' '.join(command)}` starts no sglang server: give {_FORMS}")
    return Asked(tuple(rest), variables, under_run)


def is_python(word: str) -> bool:
    """Whether a word starts a Python, by its name."""
    return _PYTHON.fullmatch(os.path.basename(word)) is not None


def take_front(words: list[str], variables: dict[str, str]) -> bool:
    """Remove the words before the program: assignments, ``env``, ``nohup``, our ``run``.

    Args:
        words: of a command, changed in place; the program is the first one left.
        variables: the environment, changed in place.

    Returns:
        whether our ``run`` was among them.

    Raises:
        OperatorError: an option of ``env`` is unknown.
    """
    under_run = False
    while words:
        name = os.path.basename(words[0])
        module, rest = _python(words[1:]) if is_python(name) else (name, words[1:])
        if _ASSIGNMENT.match(words[0]):
            variable, _, value = words.pop(0).partition("=")
            variables[variable] = value
        elif name == "env":
            del words[0]
            _read_env(words, variables)
        elif module in _OURS and rest[:1] == ["run"]:
            words[:] = rest[2 if rest[1:2] == ["--"] else 1 :]
            under_run = True
        elif name in _TRANSPARENT:
            del words[0]
            while words and not _is_head(words[0]):
                del words[0]
        else:
            break
    return under_run


def _is_head(word: str) -> bool:
    name = os.path.basename(word)
    known = {"env", "sglang", *_OURS, *_TRANSPARENT}
    return name in known or is_python(word) or _ASSIGNMENT.match(word) is not None


def _read_env(words: list[str], variables: dict[str, str]) -> None:
    """Remove the options of ``env`` from the words, and apply them to the variables."""
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
            raise OperatorError(f"`env {option}` is not supported here: leave it out")


def _python(words: Sequence[str]) -> tuple[str, list[str]]:
    """The module that a Python command runs (for a script, its module), and its arguments."""
    for at, word in enumerate(words):
        if word == "-m":
            return "".join(words[at + 1 : at + 2]), list(words[at + 2 :])
        if os.path.basename(word) == "launch_server.py":
            return _LAUNCHERS[0], list(words[at + 1 :])
    return "", []


def _of_serve(words: Sequence[str]) -> tuple[str, ...]:
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
    return tuple(rest)
