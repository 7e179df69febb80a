"""An operator's command: the address of its server, and the options to add."""

from __future__ import annotations

import errno
import os
import random
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import urlsplit

from . import UsageError, redact

_EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - where a server may listen


@dataclass(frozen=True)
class ServerCommand:
    """A server's command with a known address.

    Attributes:
        command: its words; with a port added if it had none.
        host: the address under which a client reaches it.
        api_key: the key that requests must send; None if it needs none.
    """

    command: tuple[str, ...]
    host: str
    port: int
    api_key: str | None = None

    @property
    def url(self) -> str:
        """The base URL, without a slash at the end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def parse(command: Sequence[str], url: str | None = None) -> ServerCommand:
    """Complete an operator's command; `url` is its address if it names none.

    Raises:
        UsageError: there is no such program, its address is unknown, or it can't serve requests
            by itself.
    """
    words = list(command)
    if not words:
        raise UsageError("no command: put the server's command after --")
    if redact.VARIABLE.fullmatch(words[0]):
        raise UsageError("the command begins with a variable: put env before it")
    if shutil.which(words[0]) is None:
        raise UsageError(f"{words[0]}: no such command")
    if _option(words, "--ssl-certfile") or _option(words, "--ssl-keyfile"):
        raise UsageError(
            "bench server supports only plain HTTP: remove --ssl-certfile and --ssl-keyfile"
        )
    mode = _option(words, "--disaggregation-mode")
    if mode not in (None, "null") and url is None:
        raise UsageError(
            f"a {mode} server can't be measured by itself: put a script that starts prefill, "
            "decode and router after --, and give the router's address by --url"
        )
    api_key = _option(words, "--api-key")
    if url is not None:
        return ServerCommand(tuple(words), *_address(url), api_key)
    host = _option(words, "--host") or ""
    host = "127.0.0.1" if host in _EVERYWHERE else host
    named = _option(words, "--port")
    if named is not None:
        if not named.isdigit():
            raise UsageError("--port takes a number")
        return ServerCommand(tuple(words), host, int(named), api_key)
    if not is_of_sglang(words):
        raise UsageError(
            f"where will `{redact.shown(words)}` answer? It names no --port: "
            "give --url http://127.0.0.1:PORT before --"
        )
    port = free_port(host)
    return ServerCommand((*words, "--port", str(port)), host, port, api_key)


def require_free(served: ServerCommand) -> None:
    """Check that no process listens on the server's port.

    Raises:
        UsageError: one does.
    """
    if not _is_free(served.host, served.port):
        raise UsageError(
            f"port {served.port} of {served.host} is in use: stop what listens there, or name "
            "another --port"
        )


def free_port(host: str) -> int:
    """A free port.

    It is below 22000 to 29999, from which 0.5.23 draws further ports that it opens only later. Some
    releases derive ports from this one: 0.5.11 adds 10000, for a port that it never opens.
    """
    while True:
        port = random.randrange(12_000, 22_000)  # noqa: S311 - not a secret
        if _is_free(host, port):
            return port


def _is_free(host: str, port: int) -> bool:
    """Whether no process of this machine listens there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # As with servers, the remains of a closed connection do not block the port.
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
        raise UsageError("--url: write it as http://HOST:PORT")
    try:
        return parts.hostname, parts.port or 80
    except ValueError as error:
        raise UsageError("--url: its port is not one") from error


def is_of_sglang(words: Sequence[str]) -> bool:
    """Whether options that are appended to the command reach the sglang server."""
    names = [os.path.basename(word) for word in words]
    return (
        "sglang.launch_server" in words
        or "launch_server.py" in names
        or any(pair == ("sglang", "serve") for pair in pairwise(names))
    )


def _option(words: Sequence[str], name: str) -> str | None:
    """The value of an option in a command, ``NAME VALUE`` or ``NAME=VALUE``; the last one wins."""
    value = None
    for at, word in enumerate(words):
        if word == name and at + 1 < len(words):
            value = words[at + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value
