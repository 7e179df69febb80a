"""Ranks on the CPU: what comes through shared memory is what stock broadcasts and reduces."""

import json
import shutil
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import released
from feature_examples import example
from sglang_perf_patches import sets
from sglang_perf_patches.model.patch import by_id
from sglang_perf_patches.model.setups import FEATURES

BROADCAST, ACKS = "mla.request-broadcast", "mla.cache-acks"
_HERE = Path(__file__).parent
_RELEASES = [pytest.param("0.5.22", marks=pytest.mark.whole_matrix), "0.5.23"]
_OWN = {"tensor-parallel", "no-overlap", "no-cuda-graphs", "no-window-pool"}
"""Features that `request_rank`'s own server has on."""
_SERVERS = (
    {"no-radix-cache", "whole-prefills"},
    {"data-parallel", "expert-parallel", "expert-all-to-all", "multimodal", "mixed-chunks"},
)
"""Further ones that it has on, in two servers."""
_PROOFS = (
    {"eagle", "draft-vocabulary", "pages", "quantised-kv", "quantised-weights"}
    | {"priorities", "hierarchical-cache", "lora", "returned-insides"},
    {"standalone", "sessions", "deterministic", "forward-metrics"},
    {"prefill-server", "other-gpu", "draft-trees"},
    {"tracked-states"},
    {"decode-server", "retracted-in-tensors"},
)
"""Those of models, drafts and kernels that need a GPU. The patch's proof has them on, in each of
five servers, and plays the receiver of that server with real ranks."""
_OF_ACKS = (*_PROOFS[:4], _OWN.union(*_SERVERS) - {"no-radix-cache"})
"""Those of the other patch. A decode server has no radix cache, so none with a tier on the host."""
_SMALL = """#!/bin/sh
mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$@"
"""


@pytest.mark.parametrize("release", _RELEASES)
def test_ranks_get_the_same_requests_through_shared_memory(release: str) -> None:
    stock, patched = _compared(release)
    assert all(0 < each["through_gloo"] < each["rounds"] / 2 for each in patched), patched
    assert all(each["through_gloo"] >= each["rounds"] for each in stock), stock
    assert len(patched[0]["received"]) == 6
    assert len(patched[0]["tokens"]) == 5


@pytest.mark.parametrize(
    "features", [pytest.param(_SERVERS[0], marks=pytest.mark.whole_matrix), _SERVERS[1]]
)
def test_ranks_get_the_same_requests_with_further_features(features: set[str]) -> None:
    chosen = [example(each) for each in FEATURES.all if each.name in features]
    asked = {name: value for each in chosen for name, value in each.items() if name != "tp_size"}
    _, patched = _compared("0.5.23", **asked)
    for each in patched:
        assert features | _OWN <= set(each["on"]), features - set(each["on"])


@pytest.mark.parametrize(
    ("patch", "features"), [*product([BROADCAST], _PROOFS), *product([ACKS], _OF_ACKS)]
)
def test_the_proof_is_played_with_further_features(patch: str, features: set[str]) -> None:
    words = ",".join(sorted(features))
    (line,) = released.answers(released.tree("0.5.23"), _HERE / "request_setups.py", words, patch)
    assert line.get("compared", 0) > 0, line
    assert features <= set(line["on"]), features - set(line["on"])


def test_each_declared_feature_is_played_here() -> None:
    declared = {id: set(by_id(sets.load())[id].proven_with or ()) for id in (BROADCAST, ACKS)}
    assert declared[BROADCAST] == _OWN.union(*_SERVERS, *_PROOFS)
    assert declared[ACKS] == set().union(*_OF_ACKS)


@pytest.mark.whole_matrix
@pytest.mark.parametrize("count", [2, 4, 8])
def test_many_ranks_agree_in_ten_thousand_rounds(count: int) -> None:
    asked = {"count": count, "plays": 10, "rounds": 1000}
    compared = _found(released.tree("0.5.23"), ACKS, "many_rounds", **asked)
    assert compared > 10_000 * count


def test_a_queue_that_does_not_fit_is_not_used(tmp_path: Path) -> None:
    """Else a large request kills the first rank, by SIGBUS."""
    place = replace(released.tree("0.5.23"), beginning="")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec unshare -rm {tmp_path}/small {place.python} "$@"\n')
    small = tmp_path / "small"
    small.write_text(_SMALL)
    for each in (python, small):
        each.chmod(0o755)
    if not shutil.which("unshare") or subprocess.run(["unshare", "-rm", small, "true"]).returncode:
        pytest.skip("this machine allows no mount; the check with a stand-in does not need one")
    _found(replace(place, python=python), BROADCAST, "large_requests_in_a_small_memory")


def _compared(release: str, **server: Any) -> list[list[dict[str, Any]]]:
    """Both ranks of a server on stock and patched, which get and answer the same."""
    script, asked = _HERE / "request_rank.py", json.dumps(server)
    stock, patched = (
        released.ranks(release, script, [each, each], asked) for each in ("none", BROADCAST)
    )
    for each in patched:
        assert each["patch"] == ["live", ""]
        assert each["ran"]
    for name in ("received", "tokens", "batches"):
        assert [each[name] for each in patched] == [each[name] for each in stock], name
    return [stock, patched]


def _found(place: released.Place, patch: str, name: str, **asked: Any) -> Any:
    arguments = {"patch": patch, "name": name, **asked}
    return released.value(place, _HERE / "jobs.py", "one", arguments=arguments)
