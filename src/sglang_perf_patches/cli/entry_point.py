"""How a server comes to load this plugin: by the entry point of its package, in its own words."""

from __future__ import annotations

import os

from ..judge.source import Tree

GROUP = "sglang.srt.plugins"
"""The group of entry points that sglang loads, and the module that loads it."""

NAME = "perf_patches"
"""The name under which ``SGLANG_PLUGINS`` lets this plugin through."""


def obstacle(tree: Tree) -> str:
    """What keeps a server of the installed sglang from loading it by itself; empty for nothing."""
    if tree.path(GROUP) is None:
        return (
            "This release loads no plugins: start the server with "
            "`sglang-perf-patches run COMMAND ...`."
        )
    allowed = [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",")]
    if any(allowed) and NAME not in allowed:
        return (
            f"SGLANG_PLUGINS does not name {NAME}, so sglang will not load this plugin: "
            "add the name, or start the server with `sglang-perf-patches run COMMAND ...`."
        )
    return ""
