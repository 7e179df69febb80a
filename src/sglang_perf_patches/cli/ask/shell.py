"""What a shell makes of a command: variables, redirections, and the commands of a script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from string import Template

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=(?!=)", re.ASCII)
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


def command_of(words: Sequence[str]) -> tuple[list[str], str]:
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


def commands(script: str, variables: Mapping[str, str]) -> Iterator[list[str]]:
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
