"""A plugin that prints ``noted: PATCH FEATURES`` for each patch that a server lets through."""

import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "harness"))

import noted


def load() -> None:
    """Print each line once."""
    told: set[str] = set()

    def note(patch: str, features: Iterable[str]) -> None:
        line = f"noted: {patch} {' '.join(sorted(features))}"
        if line not in told:
            told.add(line)
            print(line, flush=True)

    noted.tell(note)
