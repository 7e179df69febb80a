"""Removing private data from a report."""

from __future__ import annotations

import getpass
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..seen import procfs

_PATH, _HOST, _USER, _VALUE = "<path>", "<host>", "<user>", "<removed>"

_PLAIN_VALUE = re.compile(r"-?\d+(\.\d+)?([eE]-?\d+)?[kKmMgG]?|(?i:true|false|none|null|auto)")
_PATHS = re.compile(r"(?<![\w.:/<])(?:~/|[A-Za-z]:\\|/)[\w.][^\s'\",;)\]]*")
_ADDRESSES = re.compile(
    r"\b\w+://[^\s'\"]+"  # any URL, with all its parts
    r"|\b\d{1,3}(?:\.\d{1,3}){3}\b(?::\d+)?"
    r"|(?<![\w:])\[?(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{0,4}\]?"
)
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_SECRETS = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA)[\w-]{8,}"
    r"|\b[A-Za-z0-9+/_-]{40,}={0,2}(?![\w.])"
)
_SHOWN_FLAGS = frozenset(
    {
        *("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend"),
        *("--sampling-backend", "--grammar-backend", "--moe-runner-backend", "--moe-a2a-backend"),
        *("--speculative-algorithm", "--disaggregation-mode", "--schedule-policy", "--device"),
        *("--dtype", "--kv-cache-dtype", "--quantization", "--load-balance-method", "--log-level"),
        *("--speculative-attention-mode", "--mamba-ssm-dtype", "--mamba-scheduler-strategy"),
        *("--disaggregation-transfer-backend", "--linear-attn-backend", "--mamba-backend"),
    }
)
"""Flags whose value is one of a few words of sglang's own."""
_ROLE = re.compile(
    "launcher|scheduler|detokenizer|tokenizer|data_parallel|SpawnProcess|ForkProcess"
)
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,32}")


@dataclass(frozen=True)
class Redaction:
    """What is taken out of any text: paths, addresses, secrets, and these names.

    Attributes:
        hosts: names of this machine.
        users: names of this user.
    """

    hosts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()

    @classmethod
    def of_this_machine(cls) -> Redaction:
        """With this machine's names and this user's."""
        hosts = {platform.node(), platform.node().partition(".")[0]}
        try:
            users = {getpass.getuser(), os.path.basename(os.path.expanduser("~"))}
        except (OSError, KeyError):
            users = set()
        # Redacting names this short or common would remove ordinary words.
        common = {"", "root", "user", "localhost", "home"}
        return cls(tuple(hosts - common), tuple(name for name in users - common if len(name) > 2))

    def text(self, text: str) -> str:
        """The text without them."""
        for pattern, instead in (
            (_ADDRESSES, _HOST),
            (_MAIL, _HOST),
            (_PATHS, _PATH),
            (_SECRETS, _VALUE),
        ):
            text = pattern.sub(instead, text)
        for names, instead in ((self.hosts, _HOST), (self.users, _USER)):
            for name in names:
                text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", instead, text)
        return text

    def of(self, data: Any) -> Any:
        """The same for all strings of JSON data, keys too."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, dict):
            return {self.text(key): self.of(value) for key, value in data.items()}
        if isinstance(data, list | tuple):
            return [self.of(value) for value in data]
        return data


def role(text: str) -> str:
    """A role as sglang calls it; a script's own name is not shown."""
    return text if _ROLE.match(text) else "<script>"


def flags(pid: int) -> list[str]:
    """The flags of a server's command; of their values only numbers and sglang's own words."""
    return shown_flags(procfs.command(pid))


def shown_flags(words: Sequence[str]) -> list[str]:
    """The flags among the words of a command, without revealing values.

    >>> shown_flags(["python", "--model-path", "me/secret", "--tp", "2", "--dtype=half"])
    ['--model-path <removed>', '--tp 2', '--dtype half']
    """
    found: list[str] = []
    for word in words[1:]:
        if word.startswith("--") and re.fullmatch(r"--[a-z0-9-]+(=.*)?", word, re.DOTALL):
            name, has_value, value = word.partition("=")
            found.append(name)
            if has_value:
                found[-1] += f" {_shown(name, value)}"
        elif found and (not word.startswith("-") or _PLAIN_VALUE.fullmatch(word)):
            found[-1] += f" {_shown(found[-1].partition(' ')[0], word)}"
    return found


def _shown(name: str, value: str) -> str:
    if _PLAIN_VALUE.fullmatch(value):
        # A port or a seed reveals nothing; a host's number may.
        return _VALUE if re.search("host|addr|key|token|password|secret", name) else value
    return value if name in _SHOWN_FLAGS and _WORD.fullmatch(value) else _VALUE
