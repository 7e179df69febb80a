"""What `on_release` plays of the mla patches: their cases, and the checks of ``check_*.py``."""

from __future__ import annotations

import importlib
import traceback
from typing import Any

from tests.proof import stubs

stubs.lend()

from prove import drawn  # noqa: E402
from tests import proof  # noqa: E402


def prove(patches: list[str]) -> list[dict[str, Any]]:
    return list(proof.run(patches, drawn))


def check(patch: str) -> dict[str, str | None]:
    module = importlib.import_module(f"check_{patch.removeprefix('mla.').replace('-', '_')}")
    return {name: _raised(function) for name, function in module.CHECKS.items()}


def large_requests_in_a_small_memory() -> None:
    """See `check_request_broadcast`."""
    importlib.import_module("check_request_broadcast").large_requests_in_a_small_memory()


def many_rounds(**asked: int) -> int:
    """See `check_cache_acks`."""
    return int(importlib.import_module("check_cache_acks").many_rounds(**asked))


def _raised(function: Any) -> str | None:
    try:
        function()
    except Exception:
        return traceback.format_exc(limit=-4)
    return None
