"""Activation in a Python that ``sglang-perf-patches run`` started; `sitecustomize` calls it."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent
"""The folder that ``run`` puts first on PYTHONPATH."""


def register(name: str) -> ModuleSpec | None:
    """Activate as soon as the module `name`, which is about to be imported, has been imported.

    Returns:
        the module's spec; None if there is no such module.
    """
    from wrapt import register_post_import_hook

    register_post_import_hook(_activate, name)
    return importlib.util.find_spec(name)


def _activate(_: ModuleType) -> None:
    from .. import plugin

    plugin.load()
