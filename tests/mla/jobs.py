"""What `on_release` plays of the mla patches: their cases, and the checks of ``check_*.py``."""

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
    return {name: _raised(function) for name, function in _checks(patch).CHECKS.items()}


def one(patch: str, name: str, **asked: Any) -> Any:
    """What a function next to the checks of a patch returns."""
    return getattr(_checks(patch), name)(**asked)


def _checks(patch: str) -> Any:
    return importlib.import_module(f"check_{patch.removeprefix('mla.').replace('-', '_')}")


def _raised(function: Any) -> str | None:
    try:
        function()
    except Exception:
        return traceback.format_exc(limit=-4)
    return None
