"""What tests of several sets share: the project's own cases, run on a release on this CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import released

_SCRIPT = Path(__file__).parent / "support" / "prove.py"

Proved = Callable[[str, tuple[str, ...]], dict[str, Any]]


@pytest.fixture(scope="session")
def proved() -> Proved:
    """``proved(release, patches)``: the line of each patch's case, from one process, run once."""

    @cache
    def run(release: str, patches: tuple[str, ...]) -> dict[str, Any]:
        lines = released.answers(released.tree(release), _SCRIPT, *patches)
        found = {line["patch"]: line for line in lines}
        assert set(found) == set(patches)
        return found

    return run
