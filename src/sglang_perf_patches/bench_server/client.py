"""HTTP requests to a running server: whether it is ready, what it is, and tokens."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from . import BenchError, redact
from .command import ServerCommand

_HEALTH_S = 30
_REPLY_S = 300
# A proxy from the environment would not reach this machine's loopback.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def is_ready(served: ServerCommand) -> bool:
    """Whether the server reports that it is ready."""
    try:
        with _direct.open(_request(served, "/health"), timeout=_HEALTH_S) as reply:
            return bool(reply.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def info(served: ServerCommand, path: str) -> dict[str, Any]:
    """The server's information about itself; empty if it does not know the path."""
    try:
        reply = request(served, path)
    except BenchError:
        return {}
    return reply if isinstance(reply, dict) else {}


def request(served: ServerCommand, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """The reply to a request; to a POST if it has a body.

    Raises:
        BenchError: the server did not reply, or with an error.
    """
    try:
        with _direct.open(_request(served, path, body), timeout=_REPLY_S) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        text = redact.names(error.read(400).decode(errors="replace"))
        raise BenchError(f"{path} answered {error.code}: {text}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise BenchError(f"{path} did not answer: {redact.names(str(error))}") from error


def _request(
    served: ServerCommand, path: str, body: Mapping[str, Any] | None = None
) -> urllib.request.Request:
    headers = {"Content-Type": "application/json"}
    if served.api_key is not None:
        headers["Authorization"] = f"Bearer {served.api_key}"
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.Request(served.url + path, data, headers)  # noqa: S310 - http only
