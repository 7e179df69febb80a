"""The programs that may stand in front of a server's command, such as ``env`` or ``docker run``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from ...model.errors import OperatorError

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=(?!=)", re.ASCII)
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
class ParsedCommand:
    """A command, as far as its words are read; `take` reads those in front of it."""

    environment: dict[str, str]  # the server's
    arguments: tuple[str, ...] = ()  # the server's own
    python: tuple[str, ...] = ()  # what starts its Python; the script ``sglang`` stands for its own
    under_run: bool = False  # our ``run`` is there, and reaches the server
    elsewhere: str = ""  # where the server's Python is, if not on this machine: ``the image X``
    image: str = ""  # of its container
    by_dynamo: bool = False  # Dynamo starts it, which has arguments of its own
    ignored: list[str] = field(default_factory=list)  # parts of it that are not the server's

    def take(self, words: list[str]) -> None:
        """Apply and remove the words before the program; OperatorError for an unknown one."""
        while words:
            name = module = os.path.basename(words[0])
            rest = words[1:]
            if is_python(name):
                _, module, rest = of_python(rest)
            if ASSIGNMENT.match(words[0]):
                self.assign(words.pop(0))
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

    def assign(self, word: str) -> None:
        """Set the variable of a word ``NAME=VALUE``."""
        variable, _, value = word.partition("=")
        self.environment[variable] = value
        self._replaced(variable)

    def _env(self, words: list[str]) -> None:
        while words and words[0].startswith("-"):
            word = words.pop(0)
            option, _, variable = word.partition("=")
            if option in {"-i", "-", "--ignore-environment"}:
                self.environment.clear()
                self._replaced(_RUN_BY)
            elif option in {"-u", "--unset"} and (variable or words):
                variable = variable or words.pop(0)
                self.environment.pop(variable, None)
                self._replaced(variable)
            elif option == "--":
                return
            else:
                raise OperatorError(f"`env {word}` is not supported here: leave it out")

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
        above = (folder / ".venv" for folder in (Path.cwd(), *Path.cwd().parents))
        venv = next(filter(Path.is_dir, above), None)
        active = self.environment.get("VIRTUAL_ENV")
        if active and (venv is None or "--active" in options):
            venv = Path(active)
        if venv is not None:
            self.activate(venv)

    def activate(self, venv: Path) -> None:
        """Put a virtual environment first on PATH."""
        rest = self.environment.get("PATH", os.defpath)
        self.environment["PATH"] = os.pathsep.join([str(venv / "bin"), rest])

    def _container(self, words: list[str]) -> None:
        program = words.pop(0)
        while words and words[0] not in {"run", "exec"}:
            del words[0]
        is_run = words[:1] == ["run"]
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
                self.assign(value)
            elif option == "--entrypoint":
                entry = [value]
        if not words:
            raise OperatorError(f"can't see which command `{program}` starts in its container")
        if is_run:
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
        for name in [*self.environment]:
            if name.startswith(_NOT_PASSED):
                del self.environment[name]


def is_python(word: str) -> bool:
    """Whether a word starts a Python, by its name."""
    return _PYTHON.fullmatch(os.path.basename(word)) is not None


_OPTION = re.compile(
    r"-(?=.)(?P<flags>[bBdEhiIOPqRsSuvVx?]*)(?:m(?P<module>.*)|[WX](?P<value>.*))?"
)


def of_python(words: list[str]) -> tuple[list[str], str, list[str]]:
    """The words after a Python: its options, the module or script that it runs, and the rest."""
    options: list[str] = []
    rest = list(words)
    while rest and (found := _OPTION.fullmatch(rest[0])):
        word = rest.pop(0)
        if found["module"] is not None:
            options += [f"-{found['flags']}"] if found["flags"] else []
            rest[:0] = [found["module"]] if found["module"] else []
            break
        options.append(word)
        if found["value"] == "":  # it is the next word
            options += rest[:1]
            del rest[:1]
    return options, "".join(rest[:1]), rest[1:]


def _is_head(words: list[str]) -> bool:
    name = os.path.basename(words[0])
    is_known = name in {"env", *_OURS, *_STARTERS, *SHELLS, *_CONTAINERS} or is_python(name)
    is_sglang = name == "sglang" and words[1:2] == ["serve"]
    return is_known or is_sglang or ASSIGNMENT.match(words[0]) is not None
