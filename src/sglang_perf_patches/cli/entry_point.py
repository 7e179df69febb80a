"""Whether a server loads this plugin by itself, through sglang's entry points for plugins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata

from ..compat import source
from ..compat.source import Tree

GROUP = "sglang.srt.plugins"
"""The group of entry points that sglang loads, and the module that loads it."""

NAME = "perf_patches"
"""This plugin's name in ``SGLANG_PLUGINS``."""

FILTERED = f"SGLANG_PLUGINS does not name {NAME}, so sglang will not load this plugin"
_BY_RUN = "start the server with `sglang-perf-patches run COMMAND ...`"


def why_not_loaded(tree: Tree, environment: Mapping[str, str] = os.environ) -> str:
    """Why a server of this sglang and environment would not load this plugin; "" if it would."""
    if not is_loaded_by(tree):
        return f"This release loads no plugins: {_BY_RUN}."
    if is_filtered(environment.get("SGLANG_PLUGINS", "")):
        return f"{FILTERED}: add the name, or {_BY_RUN}."
    return ""


def why_not_loaded_here() -> str:
    """As `why_not_loaded`, of this Python's sglang; this package may not be installed in it."""
    if why := why_not_loaded(source.installed()):
        return why
    if not metadata.entry_points(group=GROUP, name=NAME):
        return f"No entry point {NAME} is installed: install this package with pip, or {_BY_RUN}."
    return ""


def is_loaded_by(tree: Tree) -> bool:
    """Whether this release loads plugins at all."""
    return tree.path(GROUP) is not None


def is_filtered(allowed: str) -> bool:
    """Whether a value of ``SGLANG_PLUGINS`` leaves this plugin out; an empty one is no filter."""
    return bool(allowed) and NAME not in (name.strip() for name in allowed.split(","))
