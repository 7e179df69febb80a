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

_LIMIT_S = 300
# A proxy from the environment would not reach this machine's loopback.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def is_ready(served: ServerCommand) -> bool:
    """Whether the server reports that it is ready."""
    try:
        request(served, "/health")
    except BenchError:
        return False
    return True


def info(served: ServerCommand, path: str) -> dict[str, Any]:
    """The server's information about itself; empty if it does not know the path."""
    try:
        return request(served, path)
    except BenchError:
        return {}


def request(
    served: ServerCommand, path: str, body: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The reply to a request, to a POST if it has a body; empty if the reply is no JSON object.

    Raises:
        BenchError: the server did not reply, or with an error.
    """
    headers = {"Content-Type": "application/json"}
    if served.api_key is not None:
        headers["Authorization"] = f"Bearer {served.api_key}"
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(served.url + path, data, headers)  # noqa: S310 - http only
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
