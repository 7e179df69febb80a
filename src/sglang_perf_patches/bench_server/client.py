"""HTTP requests to a running server: whether it is ready, what it is, and tokens."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from . import BenchError, secrets
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


def told(served: ServerCommand, *paths: str) -> dict[str, Any]:
    """The server's information about itself; empty if it knows none of the paths."""
    for path in paths:
        try:
            reply = _json(served, path, None)
        except BenchError:
            continue
        if isinstance(reply, dict):
            return reply
    return {}


def generated(served: ServerCommand, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The replies of ``/generate`` to a body with one or several prompts.

    Raises:
        BenchError: the server did not reply.
    """
    reply = _json(served, "/generate", body)
    return reply if isinstance(reply, list) else [reply]


def _json(served: ServerCommand, path: str, body: Mapping[str, Any] | None) -> Any:
    try:
        with _direct.open(_request(served, path, body), timeout=_REPLY_S) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        text = secrets.said(error.read(400).decode(errors="replace"))
        raise BenchError(f"{path} answered {error.code}: {text}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise BenchError(f"{path} did not answer: {secrets.said(str(error))}") from error


def _request(
    served: ServerCommand, path: str, body: Mapping[str, Any] | None = None
) -> urllib.request.Request:
    headers = {"Content-Type": "application/json"}
    if served.api_key is not None:
        headers["Authorization"] = f"Bearer {served.api_key}"
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.Request(served.url + path, data, headers)  # noqa: S310 - http only
