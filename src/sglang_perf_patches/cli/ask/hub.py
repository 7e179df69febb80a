"""The models that a command names on the Hugging Face hub, and whether the hub can be reached.

If it can't, ``huggingface_hub`` retries each file for 23 s or longer, which no variable of its own
shortens. So `skip` leaves only the hub's local cache, and a model that is not cached fails at once.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies

_LIMIT_S = 5.0
_OFFLINE = "HF_HUB_OFFLINE"
_OTHERWISE = (_OFFLINE, "TRANSFORMERS_OFFLINE", "SGLANG_USE_MODELSCOPE")
"""Variables with which a server does not ask the hub."""

_MODEL = re.compile(r"--(?:[a-z-]*-)?(?:model|model-path|tokenizer-path)")


def models(words: Sequence[str]) -> list[str]:
    """The models among a server's arguments that are no folders or files of this machine."""
    pairs = itertools.zip_longest(words, words[1:], fillvalue="")
    named = [word.split("=", 1) if "=" in word else (word, after) for word, after in pairs]
    return [
        value
        for option, value in named
        if _MODEL.fullmatch(option)
        and value
        and value[0] not in "-/.~"
        and "://" not in value
        and not os.path.exists(value)
    ]


def host(environment: Mapping[str, str]) -> str:
    """The host of the hub that a server asks."""
    return _address(environment).hostname or ""


def skip(words: Sequence[str]) -> bool:
    """Leave the hub's local cache if a model is named and the hub can't be reached.

    Call it before ``huggingface_hub`` is imported. Behind a proxy the hub is not tried.

    Returns:
        whether the hub is left out.
    """
    if not models(words) or any(map(os.environ.get, _OTHERWISE)) or {*getproxies()} - {"no"}:
        return False
    address = _address(os.environ)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname, port), _LIMIT_S).close()
    except OSError:
        os.environ[_OFFLINE] = "1"
        return True
    return False


def why(error: BaseException | None) -> str:
    """The hub's error behind another one, by the name of its class; "" if the hub has no part."""
    while error is not None:
        if type(error).__module__.partition(".")[0] == "huggingface_hub":
            return type(error).__name__
        error = error.__cause__ or error.__context__
    return ""


def _address(environment: Mapping[str, str]) -> SplitResult:
    return urlsplit(environment.get("HF_ENDPOINT") or "https://huggingface.co")
