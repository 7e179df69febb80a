"""What ``sitecustomize`` calls in a process below ``sglang-perf-patches run``."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent
"""The folder that ``run`` puts first on PYTHONPATH."""


def register() -> None:
    """Activate once this process has imported sglang, and leave it alone if it never does."""
    from wrapt import register_post_import_hook

    register_post_import_hook(_activate, "sglang")


def _activate(_: ModuleType) -> None:
    from .. import plugin

    plugin.load()
