"""An operator's command, the address at which its server answers, and requests to it."""

from __future__ import annotations

import argparse
import errno
import http.client
import json
import os
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from ..model.errors import OperatorError
from . import BenchError, redact

_LIMIT_S = 300
# A proxy from the environment would not reach this machine's loopback.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_PORT = "30000"  # sglang's own default
_EVERYWHERE = (None, "", "0.0.0.0", "::")  # noqa: S104 - where a server may listen


@dataclass(frozen=True)
class ServerCommand:
    """A server's command, the host and port at which a client reaches it, and the key to send."""

    command: tuple[str, ...]
    host: str
    port: int
    api_key: str | None = None

    @property
    def url(self) -> str:
        """The base URL, without a slash at the end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def is_ready(self) -> bool:
        """Whether the server reports that it is ready."""
        try:
            self.request("/health")
        except BenchError:
            return False
        return True

    def info(self, path: str) -> dict[str, Any]:
        """The server's information about itself; empty if it does not know the path."""
        try:
            return self.request(path)
        except BenchError:
            return {}

    def request(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The reply to a request, to a POST if it has a body; empty if it is no JSON object.

        Raises:
            BenchError: the server did not reply, or with an error.
        """
        headers = {"Content-Type": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, headers)  # noqa: S310 - http only
        try:
            with _direct.open(asked, timeout=_LIMIT_S) as reply:
                text = reply.read()
        except urllib.error.HTTPError as error:
            why = redact.names(error.read(400).decode(errors="replace"))
            raise BenchError(f"{path} answered {error.code}: {why}") from error
        except (OSError, http.client.HTTPException) as error:
            raise BenchError(f"{path} did not answer: {redact.names(str(error))}") from error
        try:
            found = json.loads(text)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


def parse(words: Sequence[str], url: str | None = None) -> ServerCommand:
    """Find the address of a command's server; `url` names it if the command does not.

    Raises:
        OperatorError: there is no such program, the address is unknown, or the server can't answer
            requests by itself.
    """
    if shutil.which(words[0]) is None:
        raise OperatorError(
            "the command after -- does not begin with a program; before a variable, put env"
        )
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("host", "port", "api-key", "ssl-certfile", "disaggregation-mode"):
        parser.add_argument(f"--{name}", nargs="?")
    given, _ = parser.parse_known_args(words)
    if given.ssl_certfile:
        raise OperatorError("bench server supports only plain HTTP: remove --ssl-certfile")
    if given.disaggregation_mode not in (None, "null") and url is None:
        raise OperatorError(
            f"a {given.disaggregation_mode} server can't be measured by itself: put a script that "
            "starts prefill, decode and router after --, and give the router's address by --url"
        )
    if url is not None:
        return ServerCommand(tuple(words), *_address(url), given.api_key)
    if given.port is None and not is_of_sglang(words):
        raise OperatorError("the command names no --port: give --url http://127.0.0.1:PORT")
    port = given.port or _PORT
    if not port.isdecimal():
        raise OperatorError("--port takes a number")
    host = "127.0.0.1" if given.host in _EVERYWHERE else given.host
    return ServerCommand(tuple(words), host, int(port), given.api_key)


def require_free(served: ServerCommand) -> None:
    """Raise an OperatorError if a process listens on the server's port."""
    family = socket.AF_INET6 if ":" in served.host else socket.AF_INET
    try:
        # As with servers, the remains of a closed connection do not block the port.
        socket.create_server((served.host, served.port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # with any other, it is not this machine's port
            raise OperatorError(
                f"port {served.port} of {served.host} is in use: stop what listens there, or name "
                "another --port"
            ) from error


def is_of_sglang(words: Sequence[str]) -> bool:
    """Whether the command starts a sglang server itself."""
    names = [os.path.basename(word) for word in words]
    return (
        "sglang.launch_server" in words
        or "launch_server.py" in names
        or ("sglang", "serve") in pairwise(names)
    )


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        host, port = None, 0
    if not host or parts.scheme != "http" or parts.path not in ("", "/"):
        raise OperatorError("--url: write it as http://HOST:PORT")
    return host, port
