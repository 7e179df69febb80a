"""Commands as they are typed, for a page that may be sent on: without keys and passwords.

The value of an option or a variable is hidden where its name says that it is a secret. So is that
of any variable that is not known to hold a setting, the value of a header, what a URL asks with,
JSON that holds text, and any text that looks like a known kind of token.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

HIDDEN = "..."
_SHORTEST = 6
_MEANT = ("key", "token", "secret", "passw", "passphrase", "pwd", "auth", "credential", "cookie")
_MEANT_ALONE = {"pass", "bearer", "jwt", "sas", "pat", "pin", "private", "signature", "header"}
_NOT_MEANT = re.compile(r"tokeniz|routing.key|token.map")
_SETTINGS = (
    *(
        "SGLANG_",
        "SGL_",
        "CUDA_",
        "NCCL_",
        "NVSHMEM_",
        "TORCH_",
        "PYTORCH_",
        "TRITON_",
        "FLASHINFER_",
    ),
    *("MLX_", "OMP_", "MKL_", "HIP_", "ROCR_", "VLLM_", "TOKENIZERS_", "UCX_", "GLOO_", "NUMEXPR_"),
)
OF_SHELLS = frozenset({"-c", "-lc", "-ic", "-ec"})
"""The options of a shell that take a script."""

VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
"""A variable of the environment and its value, as ``env`` and shells take it."""

_TAKE_SCRIPTS = OF_SHELLS | {"--load"}
_TAKE_SIDES = {"--a", "--b", "--c", "--d"}
_TAKE_LOGINS = {"-u", "--user"}
_HEADER = re.compile(r"[A-Za-z][\w-]*:\s+(?=\S)")
_URL = re.compile(r"[A-Za-z][\w+.-]*://\S*")
_PIECES = re.compile(r"[\w+/.~-]+={0,2}(?!\w)")
_TOKEN = re.compile(
    r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA)[\w-]{8,}"
    r"|\beyJ[\w-]+\.[\w-]+\.[\w-]*|(?<=://)[^/@\s]+(?=@)|(?<=\?)[\w.~%-]+=\S*|(?<=\bBearer )\S+",
    re.IGNORECASE,
)


def shown(words: Sequence[str]) -> str:
    """A command without its secrets.

    >>> shown(["env", "HF_TOKEN=hf_1", "serve", "--admin-api-key", "k", "--tp=2"])
    'env HF_TOKEN=... serve --admin-api-key ... --tp=2'
    """
    return shlex.join(word for word, _ in _each(words))


def without(text: str, words: Sequence[str]) -> str:
    """Text without the secrets of a command, which a server may repeat whole or in part."""
    hidden = {each for _, secret in _each(words) for each in (secret, *_PIECES.findall(secret))}
    for each in sorted(hidden, key=len, reverse=True):
        if len(each) >= _SHORTEST:
            text = text.replace(each, HIDDEN)
    return _TOKEN.sub(HIDDEN, text)


def _each(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each word as it is shown, and what is hidden of it."""
    option = before = ""
    for word in words:
        if re.match(r"-(?!\d)\S*$", word):
            option, has_value, value = word.partition("=")
            masked, secret = _value(option, value)
            yield (f"{option}={masked}", secret) if has_value else (option, "")
            option = "" if has_value else option
            continue
        yield _value(option, word) if option else _word(word)
        # Several words may follow a secret option; after another one, a program and its own may.
        # What is not an option is given something in a script: ``a["key"] = "..."``.
        name = option or (before if word == "=" else "")
        option = name if name and _is_secret(name, word) else ""
        before = word


def _value(name: str, value: str) -> tuple[str, str]:
    if _is_secret(name, value) or (name in _TAKE_LOGINS and ":" in value):
        return HIDDEN, value
    if name in _TAKE_SIDES:  # variables and flags as one word
        pairs = list(_each(_split(value)))
        return shlex.join(one for one, _ in pairs), " ".join(
            hidden for _, hidden in pairs if hidden
        )
    return _word(value, is_script=name in _TAKE_SCRIPTS)


def _word(word: str, *, is_script: bool = False) -> tuple[str, str]:
    """A word that is no option's name."""
    if word.lstrip()[:1] in ("{", "["):
        return (word, "") if _is_harmless_json(word) else (HIDDEN, word)
    header = _HEADER.match(word)
    if header and not is_script:
        return f"{header[0]}{HIDDEN}", word[header.end() :]
    variable = VARIABLE.fullmatch(word)
    if variable and not is_script:
        name = variable[1]
        is_setting = name.startswith(_SETTINGS) and not _is_secret(name, variable[2])
        return (word, "") if is_setting else (f"{name}={HIDDEN}", variable[2])
    if re.search(r"\s", word):
        inner = _split(word)
        if len(inner) > 1:  # a script, or options as one word
            pairs = list(_each(inner))
            secrets = " ".join(secret for _, secret in pairs if secret)
            return (shlex.join(one for one, _ in pairs), secrets) if secrets else (word, "")
    if re.search(r"[{}\[\]:=\"']", word) and _is_secret(_URL.sub("", word), ""):
        return HIDDEN, word
    masked = _TOKEN.sub(HIDDEN, word)
    return masked, "" if masked == word else word


def _is_harmless_json(word: str) -> bool:
    """Whether it holds numbers and truth values alone, under names that tell of no secret."""

    def is_harmless(value: Any) -> bool:
        if isinstance(value, dict):
            return all(not _is_secret(key, "") and is_harmless(one) for key, one in value.items())
        if isinstance(value, list):
            return all(map(is_harmless, value))
        return value is None or isinstance(value, bool | int | float)

    try:
        return is_harmless(json.loads(word))
    except (ValueError, RecursionError):
        return False


def _split(word: str) -> list[str]:
    try:
        return shlex.split(word)
    except ValueError:
        return word.split()


def _is_secret(name: str, value: str) -> bool:
    """Whether the name of an option or a variable says that its value is secret."""
    bare = _NOT_MEANT.sub("", name.lower())
    if re.fullmatch(r"-?[\d.]{1,9}", value):
        bare = bare.replace("tokens", "")  # how many
    return any(part in bare for part in _MEANT) or bool(
        _MEANT_ALONE & set(re.split(r"[^a-z]+", bare))
    )
