"""Which distribution brings a package: asked for a name in a message, and so rarely and cheaply.

``importlib.metadata.packages_distributions`` reads and parses all that every distribution says of
itself, which takes seconds where there are hundreds. Here one package is looked for, the answer is
kept, and only the lists of files that name the package are looked into.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from functools import lru_cache
from importlib import metadata

_PLUGINS = "sglang.srt.plugins"


def distribution(package: str) -> str | None:
    """The distribution that brings a top-level package, also where it is installed editable.

    Args:
        package: its name.

    Returns:
        the distribution's name; None if there is none, or the distributions can't be read.
    """
    with contextlib.suppress(Exception):  # a message is worth no failure
        return _found(package, tuple(map(str, sys.path)))
    return None


@lru_cache(maxsize=256)
def _found(package: str, path: tuple[str, ...]) -> str | None:
    """See `distribution`; `path` is where distributions are looked for."""
    plugin = _plugins(path).get(package)
    if plugin is not None:
        return plugin
    for one in metadata.distributions():
        with contextlib.suppress(Exception):  # it is damaged
            if _brings(one, package):
                return str(one.metadata["Name"])
    return None


@lru_cache(maxsize=4)
def _plugins(_path: tuple[str, ...]) -> dict[str, str]:
    """Top-level package → the distribution whose plugin for sglang is in it."""
    distributions: dict[str, str] = {}
    for entry_point in metadata.entry_points(group=_PLUGINS):
        if entry_point.dist:
            top = entry_point.value.partition(":")[0].partition(".")[0]
            distributions.setdefault(top, entry_point.dist.name)
    return distributions


def _brings(one: metadata.Distribution, package: str) -> bool:
    declared = (one.read_text("top_level.txt") or "").split()
    if declared:
        return package in declared
    record = one.read_text("RECORD")
    if record is not None:
        # A line for each file; a name with a comma is quoted.
        lines = re.finditer(rf'^"?({re.escape(package)}(?:/|\.)[^",\n]*)', record, re.MULTILINE)
        return any(_is_in(line[1], package) for line in lines)
    return any(_is_in(str(file), package) for file in one.files or ())


def _is_in(file: str, package: str) -> bool:
    return file.startswith(f"{package}/") or inspect.getmodulename(file) == package
