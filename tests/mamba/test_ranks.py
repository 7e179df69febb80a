"""Two processes with half of a model each: what the prefill graph does where they differ."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import released

GRAPH = "mamba.gdn-prefill-graph"
_HERE = Path(__file__).parent
_LIMIT_S = 900


@pytest.mark.whole_matrix  # four processes with a model each
@pytest.mark.parametrize("release", ["0.5.22", "0.5.23"])
def test_a_server_boots_and_computes_the_same_if_one_rank_has_no_patch(release: str) -> None:
    """Both ranks then run stock's code, so both plays are compared with it."""
    stock = _ranks(release, GRAPH, "none")
    patched = _ranks(release, GRAPH, GRAPH)
    assert [each["patch"] for each in stock] == [
        ["gated", "a rank of this server runs stock's code here"],
        ["off", "not chosen"],
    ]
    assert [each["on tables"] for each in stock] == [0, 0]
    for each in patched:
        prefills = [batch for batch in each["computed"]["batches"] if batch[0] == "prefill"]
        assert each["patch"] == ["live", ""]
        assert each["on tables"] == len(prefills) + 2  # and its two buckets
    assert [each["computed"] for each in patched] == [each["computed"] for each in stock]


@pytest.mark.whole_matrix  # four processes with a model each
@pytest.mark.parametrize("release", ["0.5.22", "0.5.23"])
def test_ranks_with_experts_of_their_own_compute_what_stocks_do(release: str) -> None:
    stock = _ranks(release, "none", "none", ep_size=2)
    patched = _ranks(release, GRAPH, GRAPH, ep_size=2)
    for each in patched:
        assert each["patch"] == ["live", ""]
        assert "expert-parallel" in each["on"]
    assert min(each["on tables"] for each in patched) > 2
    assert [each["on tables"] for each in stock] == [0, 0]
    assert [each["computed"] for each in patched] == [each["computed"] for each in stock]


def _ranks(
    release: str, *selections: str, script: str = "qwen_rank", **server: Any
) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = released.tree(release, beginning="")

    def play(rank: int) -> dict[str, Any]:
        words = (str(rank), str(len(selections)), port, selections[rank], json.dumps(server))
        (told,) = released.answers(place, _HERE / f"{script}.py", *words, limit_s=_LIMIT_S)
        return dict(told)

    with ThreadPoolExecutor(len(selections)) as all_ranks:
        return list(all_ranks.map(play, range(len(selections))))
