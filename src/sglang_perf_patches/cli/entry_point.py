"""How a server comes to load this plugin: by the entry point of its package, in its own words."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..compat.source import Tree

GROUP = "sglang.srt.plugins"
"""The group of entry points that sglang loads, and the module that loads it."""

NAME = "perf_patches"
"""The name under which ``SGLANG_PLUGINS`` lets this plugin through."""

FILTERED = f"SGLANG_PLUGINS does not name {NAME}, so sglang will not load this plugin"
_BY_RUN = "start the server with `sglang-perf-patches run COMMAND ...`"


def obstacle(tree: Tree, environment: Mapping[str, str] = os.environ) -> str:
    """What keeps a server of a sglang from loading it by itself; empty for nothing.

    Args:
        tree: the sglang.
        environment: of the server.
    """
    if not is_loaded_by(tree):
        return f"This release loads no plugins: {_BY_RUN}."
    if is_filtered(environment.get("SGLANG_PLUGINS", "")):
        return f"{FILTERED}: add the name, or {_BY_RUN}."
    return ""


def is_loaded_by(tree: Tree) -> bool:
    """Whether this sglang loads plugins."""
    return tree.path(GROUP) is not None


def is_filtered(allowed: str) -> bool:
    """Whether a value of ``SGLANG_PLUGINS`` leaves this plugin out; an empty one is no filter."""
    return bool(allowed) and NAME not in (name.strip() for name in allowed.split(","))
