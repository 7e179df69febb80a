"""The programs that may stand in front of a server's command, such as ``env`` or ``docker run``."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from ...model.errors import OperatorError
from .shell import ASSIGNMENT

_PYTHON = re.compile(r"python[\d.]*", re.ASCII)
_OURS = ("sglang-perf-patches", "sglang_perf_patches")
_STARTERS = {
    **dict.fromkeys(("exec", "nohup", "numactl", "nice", "ionice", "stdbuf", "setsid"), 0),
    **dict.fromkeys(("time", "sudo", "srun", "tini", "dumb-init"), 0),
    **dict.fromkeys(("taskset", "timeout", "uv"), 1),
}
"""Programs that start a command after options of their own, and how many more words they take."""

SHELLS = ("bash", "sh", "dash", "zsh")
_CONTAINERS = ("docker", "podman", "nerdctl")
_OF_CONTAINERS = re.compile(
    r"-[ditPq]+|--(?:detach|interactive|tty|rm|init|privileged|publish-all|read-only|quiet"
    r"|no-healthcheck|oom-kill-disable)(?:=.*)?"
)
"""Options of ``docker run`` and ``docker exec`` that take no value."""
_NOT_PASSED = ("SGLANG", "PYTHON")
_RUN_BY = "PYTHONPATH"  # by which our ``run`` reaches a server


@dataclass
class Front:
    """The words in front of a command, and what they set.

    Attributes:
        variables: the environment of the server.
        under_run: whether our ``run`` is there, and reaches the server.
        elsewhere: where the server's Python is, if it is not on this machine: ``the image X``.
        image: the image of a container; "" without one.
    """

    variables: MutableMapping[str, str]
    under_run: bool = False
    elsewhere: str = ""
    image: str = ""

    def take(self, words: list[str]) -> None:
        """Remove the words before the program, and apply them.

        Args:
            words: of a command, changed in place; the program is the first one left.

        Raises:
            OperatorError: what a word does is unknown.
        """
        while words:
            name = os.path.basename(words[0])
            module, rest = (name, words[1:])
            if is_python(name):
                _, module, rest = of_python(words[1:])
            if ASSIGNMENT.match(words[0]):
                variable, _, value = words.pop(0).partition("=")
                self.variables[variable] = value
                self._replaced(variable)
            elif name == "env":
                del words[0]
                self._env(words)
            elif module in _OURS and rest[:1] == ["run"]:
                words[:] = rest[2 if rest[1:2] == ["--"] else 1 :]
                self.under_run = True
            elif name in _CONTAINERS:
                self._container(words)
            elif name in _STARTERS:
                self._starter(name, words)
            else:
                break

    def _env(self, words: list[str]) -> None:
        while words and words[0].startswith("-"):
            option = words.pop(0)
            if option in {"-i", "-", "--ignore-environment"}:
                self.variables.clear()
                self._replaced(_RUN_BY)
            elif (option == "-u" and words) or option.startswith("--unset="):
                variable = words.pop(0) if option == "-u" else option.partition("=")[2]
                self.variables.pop(variable, None)
                self._replaced(variable)
            elif option == "--":
                return
            else:
                raise OperatorError(f"`env {option}` is not supported here: leave it out")

    def _starter(self, name: str, words: list[str]) -> None:
        """Remove a program and its own words; whatever else follows is what it starts."""
        del words[0]
        options, further, is_value = [], _STARTERS[name], False
        while words and not _is_head(words):
            if words[0].startswith("-"):
                is_value = "=" not in words[0]
            elif is_value:
                is_value = False
            elif further:
                further -= 1
            else:
                break
            options.append(words.pop(0))
        if name == "sudo" and not {"-E", "--preserve-env"} & set(options):
            self._forget()
        if image := next((one for one in options if one.startswith("--container-image=")), ""):
            self._be_in(image.partition("=")[2])
        if name == "uv":
            self._uv(options)

    def _uv(self, options: list[str]) -> None:
        """``uv run``: the environment of the project, else the active one."""
        if any("sglang" in one for one in options):
            self.elsewhere = "an environment that uv makes"
        here = Path.cwd()
        venv = next((up / ".venv" for up in (here, *here.parents) if (up / ".venv").is_dir()), None)
        active = self.variables.get("VIRTUAL_ENV")
        if venv is None or "--active" in options:
            venv = Path(active) if active else venv
        if venv is not None:
            self.activate(venv)

    def activate(self, venv: Path) -> None:
        """Put a virtual environment first on PATH."""
        rest = self.variables.get("PATH", os.defpath)
        self.variables["PATH"] = os.pathsep.join([str(venv / "bin"), rest])

    def _container(self, words: list[str]) -> None:
        program = words.pop(0)
        while words and words[0] not in {"run", "exec"}:
            del words[0]
        does = "".join(words[:1])
        del words[:1]
        self._forget()
        entry: list[str] = []
        while words and words[0].startswith("-"):
            option, has_value, value = words.pop(0).partition("=")
            if not option.startswith("--") and len(option) > 2 and option[1] in "evpuwlh":
                option, value = option[:2], option[2:] + has_value + value
                has_value = "="
            if not has_value and not _OF_CONTAINERS.fullmatch(option) and words:
                value = words.pop(0)
            if option in {"-e", "--env"} and "=" in value:
                variable, _, value = value.partition("=")
                self.variables[variable] = value
            elif option == "--entrypoint":
                entry = [value]
        if not words or not does:
            raise OperatorError(f"can't see which command `{program}` starts in its container")
        if does == "run":
            self._be_in(words[0])
        else:
            self.elsewhere = f"the container {words[0]}"
        words[:1] = entry

    def _be_in(self, image: str) -> None:
        self.image, self.elsewhere = image, f"the image {image}"

    def _replaced(self, variable: str) -> None:
        """Our ``run`` reaches no command behind which its variable is replaced."""
        self.under_run = self.under_run and variable != _RUN_BY

    def _forget(self) -> None:
        """Variables that are not passed on: those that change what a server does."""
        self._replaced(_RUN_BY)
        for name in [*self.variables]:
            if name.startswith(_NOT_PASSED):
                del self.variables[name]


def is_python(word: str) -> bool:
    """Whether a word starts a Python, by its name."""
    return _PYTHON.fullmatch(os.path.basename(word)) is not None


_WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}
_FLAGS = re.compile(r"-[bBdEhiIOPqRsSuvVx?]+|-[WX].+")
_MODULE = re.compile(r"-(?P<flags>[bBdEhiIOPqRsSuvVx?]*)m(?P<module>.*)")


def of_python(words: list[str]) -> tuple[list[str], str, list[str]]:
    """The options of a Python, the module or script that it runs, and that one's arguments.

    Args:
        words: what follows the Python.
    """
    options: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        if found := _MODULE.fullmatch(word):
            options += [f"-{found['flags']}"] if found["flags"] else []
            if found["module"]:
                return options, found["module"], words[at + 1 :]
            return options, "".join(words[at + 1 : at + 2]), words[at + 2 :]
        if word in _WITH_VALUE:
            options += words[at : at + 2]
            at += 1
        elif _FLAGS.fullmatch(word):
            options.append(word)
        else:
            break
        at += 1
    return options, "".join(words[at : at + 1]), words[at + 1 :]


def _is_head(words: list[str]) -> bool:
    name = os.path.basename(words[0])
    known = {"env", *_OURS, *_STARTERS, *SHELLS, *_CONTAINERS}
    return (
        name in known
        or is_python(name)
        or (name == "sglang" and words[1:2] == ["serve"])
        or ASSIGNMENT.match(words[0]) is not None
    )
