"""The patch sets: one package each, found by `load`."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from ..model import releases
from ..model.errors import OperatorError
from ..model.patch import PatchSet

NAMES = ("mlx", "mla", "mamba", "swa")
"""The sets in the order in which ``list`` shows them."""


class FingerprintError(OperatorError, RuntimeError):
    """A set's fingerprints can't be read."""


@lru_cache(maxsize=1)
def load() -> tuple[PatchSet, ...]:
    """Every set with its fingerprints; raises as `read_known`."""
    return tuple(_declared(name, read_known(name)) for name in NAMES)


def declared(name: str) -> PatchSet:
    """A set with the fingerprints that are there, none where its ``known.json`` can't be read."""
    try:
        return _declared(name, read_known(name))
    except FingerprintError:
        return _declared(name, {})


def read_known(name: str) -> dict[str, dict[str, tuple[str, ...]]]:
    """The fingerprints of a set: reference → {digest → releases}.

    Raises:
        FingerprintError: the file is missing or damaged.
    """
    try:
        # Not by importlib.resources, which brings zipfile and tempfile into every server.
        data = json.loads((Path(__file__).parent / name / "known.json").read_bytes())
        return {
            reference: {digest: releases.from_spans(where) for digest, where in hashes.items()}
            for reference, hashes in data.items()
        }
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise FingerprintError(f"the fingerprints of {name} can't be read: {error}") from error


def _declared(name: str, known: dict[str, dict[str, tuple[str, ...]]]) -> PatchSet:
    module = import_module(f"{__name__}.{name}")
    modules = [import_module(f"{__name__}.{name}.{each}") for each in module.MODULES]
    return PatchSet(name, module.SUMMARY, tuple(each.PATCH.patch() for each in modules), known)
