"""Two ranks on the CPU: what comes through shared memory is what stock broadcasts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import released

BROADCAST = "mla.request-broadcast"
_SCRIPT = Path(__file__).with_name("request_rank.py")
_RELEASES = [pytest.param("0.5.22", marks=pytest.mark.whole_matrix), "0.5.23"]
_RESULTS = ("received", "tokens", "batches")


@pytest.mark.parametrize("release", _RELEASES)
def test_ranks_get_the_same_requests_through_shared_memory(release: str) -> None:
    stock = _ranks(release, "none", "none")
    patched = _ranks(release, BROADCAST, BROADCAST)
    for each in patched:
        assert each["patch"] == ["live", ""]
        assert each["ran"]
        assert 0 < each["through gloo"] < each["rounds"] / 2
    for each in stock:
        assert each["through gloo"] >= each["rounds"]
    assert len(patched[0]["received"]) == 6
    assert len(patched[0]["tokens"]) == 5
    for name in _RESULTS:
        assert [each[name] for each in patched] == [each[name] for each in stock], name


def _ranks(release: str, *selections: str, **server: Any) -> list[dict[str, Any]]:
    return released.ranks(release, _SCRIPT, selections, json.dumps(server))
