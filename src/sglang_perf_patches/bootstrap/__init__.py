"""Activation in a Python that ``sglang-perf-patches run`` started; `sitecustomize` calls it."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

from .. import plugin

FOLDER = Path(__file__).parent
"""The folder that ``run`` puts first on PYTHONPATH."""


def register(name: str) -> ModuleSpec | None:
    """Activate once the module `name`, which is about to be imported, has been; return its spec."""
    from wrapt import register_post_import_hook

    register_post_import_hook(lambda _: plugin.load(), name)
    return importlib.util.find_spec(name)
