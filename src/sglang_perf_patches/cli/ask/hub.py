"""The models that a command names on the Hugging Face hub, and whether the hub can be reached.

If it can't, ``huggingface_hub`` retries each file for 23 s or longer, which no variable of its own
shortens. So `go_offline_if_unreachable` leaves only the hub's local cache, and a model that is not
cached fails at once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies

_LIMIT_S = 5.0
_OFFLINE = "HF_HUB_OFFLINE"
_OTHERWISE = (_OFFLINE, "TRANSFORMERS_OFFLINE", "SGLANG_USE_MODELSCOPE")
"""Variables with which a server does not ask the hub."""

_LINE = re.compile(r"^\s*[\"']?([\w-]+)[\"']?\s*:\s*[\"']?([^\s\"'#]+)", re.MULTILINE)
_MODEL = re.compile(r"--(?:[a-z-]*-)?(?:model|model-path|tokenizer-path)")


def models(words: Sequence[str]) -> list[str]:
    """The models among a server's arguments that are not here and do not look like a path."""
    return [one for one in _absent(words) if one[0] not in "/.~"]


def gone(words: Sequence[str]) -> list[str]:
    """The models among a server's arguments that are paths which this machine does not have."""
    return [one for one in _absent(words) if one[0] in "/.~"]


def pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """Each argument of a server as an option and its value, ``--option=value`` too."""
    found = []
    for word, after in itertools.zip_longest(words, words[1:], fillvalue=""):
        option, has_value, value = word.partition("=")
        found.append((option, value if has_value else after))
    return found


def _absent(words: Sequence[str]) -> list[str]:
    named = pairs(words)
    for option, value in [*named]:
        if option == "--config":  # a file with further options, in YAML
            with contextlib.suppress(OSError, ValueError):
                text = Path(value).read_text("utf-8")
                named += [(f"--{name.replace('_', '-')}", of) for name, of in _LINE.findall(text)]
    return [
        value
        for option, value in named
        if _MODEL.fullmatch(option)
        and value
        and not value.startswith("-")
        and "://" not in value
        and not os.path.exists(os.path.expanduser(value))
    ]


def address() -> SplitResult:
    """The address of the hub that a server asks."""
    return urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")


def go_offline_if_unreachable(words: Sequence[str]) -> bool:
    """Leave only the hub's local cache if a model is named and the hub can't be reached; then True.

    Call it before ``huggingface_hub`` is imported. Behind a proxy the hub is not tried.
    """
    if not models(words) or any(map(os.environ.get, _OTHERWISE)) or {*getproxies()} - {"no"}:
        return False
    hub = address()
    port = hub.port or (80 if hub.scheme == "http" else 443)
    try:
        socket.create_connection((hub.hostname, port), _LIMIT_S).close()
    except OSError:
        os.environ[_OFFLINE] = "1"
        return True
    return False
