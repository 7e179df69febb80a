"""Fixtures of the framework tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from servers import serve
from throwaway import Throwaway, know


@pytest.fixture
def throwaway(tmp_path: Path) -> Throwaway:
    return Throwaway.write(tmp_path)


@pytest.fixture(params=["old", "new"])
def server(request: pytest.FixtureRequest, throwaway: Throwaway) -> Throwaway:
    """A throwaway package that publishes as ``old`` releases do, and as ``new`` ones do."""
    return serve(throwaway, request.param)


@pytest.fixture
def tree(throwaway: Throwaway) -> Path:
    """The installed tree, which a test may edit; the sets know its first state."""
    first = Throwaway.write(throwaway.site.parent / "first").site
    know(throwaway, first)
    return throwaway.site / "sglang"
