"""The patch sets: one package each, found by `load`."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import import_module
from importlib.resources import files
from typing import Any

from ..model.patch import PatchSet

NAMES = ("mlx", "mla", "mamba", "swa")
"""The sets in the order in which ``list`` shows them."""


class FingerprintError(RuntimeError):
    """A set's fingerprints can't be read."""


@lru_cache(maxsize=1)
def load() -> tuple[PatchSet, ...]:
    """Every set with its fingerprints.

    Raises:
        FingerprintError: a ``known.json`` is missing or damaged.
    """
    return tuple(
        PatchSet(found.name, found.summary, found.patches, read_known(found.name))
        for found in map(declared, NAMES)
    )


def declared(name: str) -> PatchSet:
    """A set with the fingerprints that are there, none where its ``known.json`` can't be read."""
    module = import_module(f"{__name__}.{name}")
    try:
        known = read_known(name)
    except FingerprintError:
        known = {}
    return PatchSet(name, module.SUMMARY, module.PATCHES, known)


def read_known(name: str) -> dict[str, dict[str, tuple[str, ...]]]:
    """The fingerprints of a set: reference → {digest → releases}.

    Raises:
        FingerprintError: the file is missing or damaged.
    """
    try:
        text = (files(__name__) / name / "known.json").read_text(encoding="utf-8")
        data: dict[str, Any] = json.loads(text)
        return {
            str(reference): {str(digest): _names(where) for digest, where in hashes.items()}
            for reference, hashes in data.items()
        }
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise FingerprintError(f"the fingerprints of {name} can't be read: {error}") from error


def _names(where: Any) -> tuple[str, ...]:
    if not isinstance(where, list):
        raise TypeError(f"{where!r} is not a list of releases")
    return tuple(map(str, where))
